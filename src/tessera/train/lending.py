"""Keeps processes that train together from hanging when they end.

A thread of a process group lets go of what was exchanged some time after the exchange is over, and
needs Python's lock for that. DistributedDataParallel, when it is the last to free the group, waits
for the thread with that lock in its hand, for ever; an interpreter that ends first is aborted.
"""

from __future__ import annotations

import atexit
import itertools
import time
import weakref
from typing import Any, Callable, Dict, List

PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.001

_lent: Dict[int, "weakref.ref[Any]"] = {}
_numbers = itertools.count()
_kept: List[Any] = []
atexit.register(_kept.clear)


def keep_group(group: Any) -> None:
    """Keep a process group until this process ends, or trains in another one.

    So Python frees it last, and waits for its threads without the lock.
    """
    _kept[:] = [group]


def exchange(collective: Callable[..., Any], tensor: Any, **how: Any) -> None:
    """Run a collective in place on a tensor, and remember that its group's threads have seen it.

    They get a tensor of their own with the same memory, whose end is heard of.

    Args:
        collective: one of `torch.distributed` that takes a tensor and waits.
        tensor: that it fills.
        how: further arguments of it.
    """
    alias, number = tensor.detach(), next(_numbers)
    _lent[number] = weakref.ref(alias, lambda _: _lent.pop(number, None))
    try:
        collective(alias, **how)
    except BaseException:
        _lent.pop(number, None)  # the error itself holds it
        raise


def wait_for_threads(seconds: float = PATIENCE_SECONDS) -> bool:
    """Wait until all threads have let go of what was exchanged; whether they have.

    After this the group can be freed, and the process can end.

    Args:
        seconds: to wait at most.
    """
    deadline = time.monotonic() + seconds
    while _lent and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return not _lent
