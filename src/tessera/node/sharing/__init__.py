"""Sharing of a device between jobs: pure rules, and the node's part that applies them.

A device has one holder and up to 3 guests. ``law`` opens and closes the gate of the guests by the
holder's ``account`` of delay. ``bounds`` carries that decision to a guest until it expires,
``gaps`` is what a guest does with it, and ``memory`` divides the device's memory. Each function of
these takes a state and returns the next one: no clock, no files, no processes.

``coordination`` applies them in the holder's runner, ``obedience`` in the guest's runner, and
``tessera.train.sharing`` in the guest itself. They communicate by ``files``.
"""
