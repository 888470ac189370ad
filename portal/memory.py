"""Memory and connections of a long-lived process after its start."""

import gc
from typing import Any, Final

from django.db import close_old_connections, connections

KEPT_SECONDS: Final = 60
THRESHOLDS: Final = (20_000, 10, 20)
"""A page of a large cluster makes some ten thousand values that are in no cycle."""


def settle(**_: Any) -> None:
    """Exclude the objects loaded at the start from later garbage collections.

    Modules, models and templates stay to the end: collecting them repeatedly only makes some
    requests slow, and it unshares the memory pages that forked children share.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def keep_connections(**_: Any) -> None:
    """Reuse the connections of each worker or web thread for a minute.

    To open SQLite and set its pragmas costs 2 ms, and a job uses the database several times. Only
    for long-lived threads, such as those of ``portal.serving``.
    """
    for alias in connections:
        connections.settings[alias]["CONN_MAX_AGE"] = KEPT_SECONDS


def look_at_connections(sender: Any = None, **_: Any) -> None:
    """Before a task, close connections that are too old or that a restart of the database ended.

    Celery checks none for hundreds of tasks, and all of them would fail.
    """
    if not sender.request.is_eager:
        close_old_connections()
