"""What a long-lived process does with its memory and connections once it has started."""

import gc
from typing import Any, Final

from django.db import close_old_connections, connections

KEPT_SECONDS: Final = 60
THRESHOLDS: Final = (20_000, 10, 20)
"""A page of a large cluster makes some ten thousand values that are in no cycle."""


def settle(**_: Any) -> None:
    """Take what was loaded at the start out of every later search for cycles.

    Modules, models and templates stay to the end: searching them again and again only makes some
    of the requests slow, and it unshares the pages of memory that forked children share.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def keep_connections(**_: Any) -> None:
    """Let each thread of a worker or a web process keep its connections for a minute.

    To open SQLite and set its pragmas costs two thousandths of a second, and a job comes back to
    the database several times. Only where threads stay, as those of ``portal.serving`` do.
    """
    for alias in connections:
        connections.settings[alias]["CONN_MAX_AGE"] = KEPT_SECONDS


def look_at_connections(sender: Any = None, **_: Any) -> None:
    """Before a task, close connections that are too old or that a restart of the database ended.

    Celery looks at none for hundreds of tasks, and all of them would fail.
    """
    if not sender.request.is_eager:
        close_old_connections()
