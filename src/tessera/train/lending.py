"""Safe end of processes that train together: no hang and no abort.

A thread of a process group releases the tensors of a collective some time after its end, and
needs Python's lock for that. If DistributedDataParallel is the last to free the group, it waits
for the thread while it holds this lock, and never ends. If the interpreter ends first, it is
aborted.
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
    """Hold a process group until this process ends, or trains in another one.

    So Python frees it last, and waits for its threads without the lock.
    """
    _kept[:] = [group]


def exchange(collective: Callable[..., Any], tensor: Any, **how: Any) -> None:
    """Run a collective in place on a tensor, and track the references of its group's threads.

    They get another tensor with the same memory, whose release this module observes.

    Args:
        collective: a blocking one of `torch.distributed` on a tensor.
        tensor: tensor to fill.
        how: further arguments of the collective.
    """
    alias, number = tensor.detach(), next(_numbers)
    _lent[number] = weakref.ref(alias, lambda _: _lent.pop(number, None))
    try:
        collective(alias, **how)
    except BaseException:
        _lent.pop(number, None)  # the traceback refers to the object
        raise


def wait_for_threads(seconds: float = PATIENCE_SECONDS) -> bool:
    """Wait until all threads have released exchanged tensors; returns whether they have.

    After this the group can be freed, and the process can end.

    Args:
        seconds: limit of the wait.
    """
    deadline = time.monotonic() + seconds
    while _lent and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return not _lent
