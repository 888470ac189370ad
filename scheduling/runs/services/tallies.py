"""Shared tallies of a virtual cluster: first starts, and evictions.

A transaction that adds to a tally locks its row until the commit and blocks other writers of that
virtual cluster. It therefore writes tallies last.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import connection, models

from scheduling.core.lifecycle import FailureClass
from scheduling.core.waits import wait_class
from scheduling.jobs.models import Job
from scheduling.runs.models import EvictionTally, WaitTally

# An end by the job's own command or limits is not an eviction.
EVICTING: Final = frozenset(
    {
        FailureClass.NODE,
        FailureClass.IMAGE,
        FailureClass.PREEMPTED,
        FailureClass.TIMEOUT,
        FailureClass.PLATFORM,
    }
)

_ADD: Final = """
    INSERT INTO {table} ({names}) VALUES ({values})
    ON CONFLICT (virtual_cluster_id, {kind}) DO UPDATE SET {sums}
"""


@dataclass(slots=True)
class _Uncounted:
    """Pending counts of a block: jobs by the time of their first start, and evictions."""

    begun: dict[datetime, set[int]] = field(default_factory=lambda: defaultdict(set))
    evicted: Counter[tuple[int, str]] = field(default_factory=Counter)

    def hand_to(self, outer: "_Uncounted") -> None:
        for now, job_ids in self.begun.items():
            outer.begun[now] |= job_ids
        outer.evicted.update(self.evicted)

    def write(self) -> None:
        for now, job_ids in sorted(self.begun.items()):
            _add_first_starts(job_ids, now)
        _add_evictions(self.evicted)


_uncounted: Final[ContextVar[_Uncounted | None]] = ContextVar("_uncounted", default=None)


@contextmanager
def tallies_written_last() -> Iterator[None]:
    """Add the starts and evictions of this block at its end, which must end the transaction.

    The outer block counts a nested block, and does not count it if it fails, as with a savepoint.
    """
    outer, mine = _uncounted.get(), _Uncounted()
    token = _uncounted.set(mine)
    try:
        yield
    finally:
        _uncounted.reset(token)
    if outer is None:
        mine.write()
    else:
        mine.hand_to(outer)


def count_first_starts(job_ids: Collection[int], now: datetime) -> None:
    """Add the waits of jobs that run for the first time, in the transaction of their start.

    Args:
        job_ids: jobs that started to run at ``now``; jobs that had run before are ignored.
        now: the stored start time.
    """
    uncounted = _uncounted.get()
    if uncounted is not None:
        uncounted.begun[now].update(job_ids)
    else:
        _add_first_starts(job_ids, now)


def count_evictions(reasons: Iterable[tuple[int, FailureClass]]) -> None:
    """Add evictions to the tallies, in the transaction of the eviction.

    Args:
        reasons: virtual cluster and reason of each eviction; reasons outside ``EVICTING`` are
            ignored.
    """
    found = Counter((vc, reason.value) for vc, reason in reasons if reason in EVICTING)
    uncounted = _uncounted.get()
    if uncounted is not None:
        uncounted.evicted.update(found)
    else:
        _add_evictions(found)


def add_waits(waits: Iterable[tuple[int, float]]) -> None:
    """Add waits to the tallies, given by virtual cluster and seconds."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for vc_id, seconds in waits:
        found[vc_id, wait_class(seconds)].append(max(seconds, 0.0))
    _add(
        WaitTally,
        "wait_class",
        {key: {"count": len(these), "seconds": sum(these)} for key, these in found.items()},
    )


def _add_first_starts(job_ids: Collection[int], now: datetime) -> None:
    if job_ids:
        first = Job.objects.unscoped().filter(pk__in=list(job_ids), first_started_at=now)
        rows = first.order_by().values_list("virtual_cluster_id", "submitted_at")
        add_waits((vc_id, (now - submitted).total_seconds()) for vc_id, submitted in rows)


def _add_evictions(found: Mapping[tuple[int, str], int]) -> None:
    _add(EvictionTally, "reason", {key: {"count": number} for key, number in found.items()})


def _add(
    model: type[models.Model], kind: str, found: Mapping[tuple[int, Any], Mapping[str, float]]
) -> None:
    """Add numbers to the tallies by virtual cluster and kind; create missing rows."""
    table = connection.ops.quote_name(model._meta.db_table)
    with connection.cursor() as cursor:
        # A fixed order of rows prevents a deadlock between two writers.
        for key, numbers in sorted(found.items()):
            names = ("virtual_cluster_id", kind, *numbers)
            statement = _ADD.format(
                table=table,
                kind=kind,
                names=", ".join(names),
                values=", ".join(["%s"] * len(names)),
                sums=", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in numbers),
            )
            cursor.execute(statement, [*key, *numbers.values()])
