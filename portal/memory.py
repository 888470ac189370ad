"""Garbage collection and database connections of long-lived processes."""

import gc
from typing import Any, Final

from django.db import close_old_connections, connections

KEPT_SECONDS: Final = 60
THRESHOLDS: Final = (20_000, 10, 20)
"""A page of a large cluster creates about 10,000 objects without reference cycles."""


def settle(**_: Any) -> None:
    """Exclude the objects that exist after startup from later garbage collections.

    Modules, models and templates stay until the process ends. Collecting them again slows down
    some requests, and it unshares memory pages with forked children.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def keep_connections(**_: Any) -> None:
    """Reuse the database connections of worker and web threads for a minute.

    Opening SQLite and setting its pragmas takes 2 ms, and a job uses the database several times.
    Only long-lived threads benefit, such as those of ``portal.serving``.
    """
    for alias in connections:
        connections.settings[alias]["CONN_MAX_AGE"] = KEPT_SECONDS


def check_connections(sender: Any = None, **_: Any) -> None:
    """Close connections before a task that are too old or broken by a database restart.

    Celery checks connections only after hundreds of tasks, all of which would fail.
    """
    if not sender.request.is_eager:
        close_old_connections()
