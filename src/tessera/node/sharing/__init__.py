"""Pure rules that a node applies to jobs on one device: no clock, no files, no processes.

A device has one holder and up to 3 guests. ``law`` opens and closes the gate of the guests by the
holder's ``account`` of delay. ``bounds`` carries that decision to a guest until it expires,
``gaps`` is what a guest does with it, and ``memory`` divides the device's memory. Each function
takes a state and returns the next one. No runner calls them yet, see ``docs/sharing.md``.
"""
