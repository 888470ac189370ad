"""Device sharing in the core: hosts of guests, charges of parts, and plants that test the law.

Pure, and not yet used by rounds: see ``docs/sharing.md``.
"""
