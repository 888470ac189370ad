"""Retention of freed memory between the steps of a training; needs no PyTorch.

glibc returns the end of its heap to the kernel whenever enough of it is free, and each step
requests the same pages again: a tenth of the time of a small network on a processor.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt (glibc)
_LARGEST_ON_THE_HEAP = 32 << 20
_NEVER = -1
_CHOSEN_BY_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Reuse freed memory in this process, up to tensors of 32 MiB; returns whether it can.

    It has no effect if environment variables configure malloc, or with a C library other than
    glibc.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USERS):
        return False
    try:
        choose = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    kept = choose(_MMAP_THRESHOLD, _LARGEST_ON_THE_HEAP), choose(_TRIM_THRESHOLD, _NEVER)
    return kept == (1, 1)
