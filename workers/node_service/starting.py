"""Starting tasks in a group that may be ending."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def begin(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> bool:
    """Start ``work`` in ``tasks``; if the group is ending, close ``work`` and return False."""
    try:
        tasks.create_task(work)
    except RuntimeError:
        work.close()
        return False
    return True
