"""The simulator of Crius' artefact (EuroSys '26, "Arena"), reproduced for ``--rules crius``.

Its policies decide in rounds, on single devices, step by step, and with the quirks that its
figures depend on; each is a switch of a policy (``policies``) or described where it is. See
``docs/simulator.md``.
"""
