"""Keeps the memory that a step frees for the next step, instead of giving it back in between.

The C library gives the end of its heap back whenever enough of it is free, and each step gets the
same pages from the kernel again: a tenth of the time of a small network on a processor.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_ON_THE_HEAP = 32 << 20
_NEVER = -1
_CHOSEN_BY_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to tensors of 32 MiB; whether that was possible.

    Nothing is changed where the environment chooses, or with another C library than glibc.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USERS):
        return False
    try:
        choose = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    kept = choose(_MMAP_THRESHOLD, _LARGEST_ON_THE_HEAP), choose(_TRIM_THRESHOLD, _NEVER)
    return kept == (1, 1)
