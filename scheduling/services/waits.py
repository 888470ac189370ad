"""Counting how long jobs waited for their first start."""

from collections import defaultdict
from collections.abc import Collection, Iterable
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


def count_first_starts(job_ids: Collection[int], now: datetime) -> None:
    """Add the waits of jobs that run for the first time, inside the transaction that says so.

    Args:
        job_ids: jobs that began to run at ``now``; those that had run before are left out.
        now: the instant that was written.
    """
    if job_ids:
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
