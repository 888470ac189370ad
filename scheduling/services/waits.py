"""Counting how long jobs waited for their first start."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Final

from django.db import connection

from scheduling.core.waits import wait_class
from scheduling.models import Job, WaitTally

_ADD: Final = """
    INSERT INTO {table} (virtual_cluster_id, wait_class, count, seconds) VALUES (%s, %s, %s, %s)
    ON CONFLICT (virtual_cluster_id, wait_class) DO UPDATE
    SET count = {table}.count + excluded.count, seconds = {table}.seconds + excluded.seconds
"""

_begun: Final[ContextVar[dict[datetime, set[int]] | None]] = ContextVar("_begun", default=None)
"""Jobs by the instant at which they began to run, which are counted at the end of a block."""


@contextmanager
def waits_counted_last() -> Iterator[None]:
    """Count the first starts of this block at its end; let it end where its transaction ends.

    All jobs of a virtual cluster share a few tallies. Who adds to one holds its row until the
    commit, and others who start jobs wait for that: what else a transaction writes comes before.
    """
    begun: dict[datetime, set[int]] = defaultdict(set)
    token = _begun.set(begun)
    try:
        yield
    finally:
        _begun.reset(token)
    for now, job_ids in sorted(begun.items()):
        count_first_starts(job_ids, now)


def count_first_starts(job_ids: Collection[int], now: datetime) -> None:
    """Add the waits of jobs that run for the first time, inside the transaction that says so.

    Args:
        job_ids: jobs that began to run at ``now``; those that had run before are left out, and
            those whose start was rolled back before a block of ``waits_counted_last`` ended.
        now: the instant that was written.
    """
    begun = _begun.get()
    if begun is not None:
        begun[now].update(job_ids)
    elif job_ids:
        first = Job.objects.unscoped().filter(pk__in=list(job_ids), first_started_at=now)
        rows = first.order_by().values_list("virtual_cluster_id", "submitted_at")
        add_waits((vc_id, (now - submitted).total_seconds()) for vc_id, submitted in rows)


def add_waits(waits: Iterable[tuple[int, float]]) -> None:
    """Add to the tallies: virtual cluster and seconds of each wait."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for vc_id, seconds in waits:
        found[vc_id, wait_class(seconds)].append(max(seconds, 0.0))
    table = connection.ops.quote_name(WaitTally._meta.db_table)
    with connection.cursor() as cursor:
        # In one order everywhere, so that two writers cannot wait for each other.
        for (vc_id, within), these in sorted(found.items()):
            cursor.execute(_ADD.format(table=table), [vc_id, within, len(these), sum(these)])
