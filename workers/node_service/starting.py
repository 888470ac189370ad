"""Beginning work in a group of tasks that may be ending at this moment."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def begin(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> bool:
    """Begin ``work`` in ``tasks``; False, with the work put away, when the group is ending."""
    try:
        tasks.create_task(work)
    except RuntimeError:
        work.close()
        return False
    return True
