"""Use of one day by job: charged device-seconds and CPU-seconds, lost work, and guests."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from django.db.models import Case, F, Max, Q, QuerySet, When
from django.db.models.functions import Greatest

from scheduling.core.charging import charged_seconds
from scheduling.core.lifecycle import EVICTED, end_reason
from scheduling.enums import LeaseKind
from scheduling.jobs.models import JobEvent
from scheduling.runs.models import CpuLease, GuestDelay, Lease
from scheduling.runs.queries.shared_charges import divided_charges

DAY: Final = timedelta(days=1)
SUMS: Final = ("guaranteed", "borrowed", "lost_preempted", "lost_failed", "guest", "delay", "cpu")
KINDS: Final = (LeaseKind.USING, LeaseKind.GUEST)
_COLUMNS: Final = (
    "job_id",
    "device__is_gpu",
    "kind",
    "virtual_cell",
    "begun",
    "member__exited_at",
    "released_at",
    "attempt__number",
    "attempt__outcome",
    "attempt__failure_class",
    "attempt__preemption__cause",
    "attempt__ended_at",
)


@dataclass(slots=True)
class DaySum:
    """Device-seconds of a job on one day."""

    guaranteed: float = 0.0
    borrowed: float = 0.0
    lost_preempted: float = 0.0
    lost_failed: float = 0.0
    guest: float = 0.0
    delay: float = 0.0
    cpu: float = 0.0

    def add(self, other: "DaySum") -> None:
        """Add the device-seconds of another sum."""
        self.guaranteed += other.guaranteed
        self.borrowed += other.borrowed
        self.lost_preempted += other.lost_preempted
        self.lost_failed += other.lost_failed
        self.guest += other.guest
        self.delay += other.delay
        self.cpu += other.cpu

    def columns(self) -> dict[str, float]:
        """Return the values of the row's columns."""
        return {name: getattr(self, name) for name in SUMS}


def day_sums(day: date, now: datetime) -> Mapping[tuple[int, bool], DaySum]:
    """Return the device-seconds of each job on a day, by job ID and GPU flag."""
    start, end = start_of(day), min(start_of(day + DAY), now)
    leases = Lease.objects.filter(
        Q(released_at=None) | Q(released_at__gt=start), kind__in=KINDS, taken_at__lt=end
    ).order_by()
    # A promoted guest holds its device only since the lease began.
    leases = leases.annotate(
        begun=Case(
            When(
                member__started_at__isnull=False,
                then=Greatest(F("member__started_at"), F("taken_at")),
            )
        )
    )
    found: dict[tuple[int, bool], DaySum] = defaultdict(DaySum)
    _add_without_leases(found, day, start, end)
    lost: list[tuple[Any, ...]] = []
    charges = divided_charges(_devices_of_peers(start, end), since=start, until=end)
    for pk, *row in leases.values_list("id", *_COLUMNS).iterator(chunk_size=2000):
        job_id, is_gpu, kind, cell, started, exited, released, _, *ending, ended = row
        if kind == LeaseKind.GUEST:
            _add_beside(found[job_id, is_gpu], charges.get(pk), row, start, end)
            continue
        seconds = charges.get(
            pk, charged_seconds(started, exited or released, since=start, until=end)
        )
        if cell and seconds:
            found[job_id, is_gpu].guaranteed += seconds
        elif seconds:
            found[job_id, is_gpu].borrowed += seconds
        # Lost work since the last checkpoint counts on the day on which the run ended.
        if ended is not None and start < ended <= end and _came_to_nothing(*ending):
            lost.append(tuple(row))
    saved = _checkpoints({row[0] for row in lost})
    for job_id, is_gpu, _, _, started, exited, released, number, *ending, ended in lost:
        since = saved.get((job_id, number))
        seconds = charged_seconds(started, exited or released, since=since, until=ended)
        if _had_to_leave(*ending) and seconds:
            found[job_id, is_gpu].lost_preempted += seconds
        elif seconds:
            found[job_id, is_gpu].lost_failed += seconds
    return found


def _add_without_leases(
    found: dict[tuple[int, bool], DaySum], day: date, start: datetime, end: datetime
) -> None:
    """Add the use of jobs without devices, and the delays of holders by their guests."""
    for job_id, cpu_seconds in _cpu_seconds(start, end):
        found[job_id, False].cpu += cpu_seconds
    for job_id, is_gpu, seconds in _delays(day):
        found[job_id, is_gpu].delay += seconds


def _cpu_seconds(start: datetime, end: datetime) -> Iterator[tuple[int, float]]:
    """Yield CPUs times seconds of the instances of jobs without devices, by job."""
    leases = CpuLease.objects.filter(
        Q(released_at=None) | Q(released_at__gt=start), taken_at__lt=end
    )
    for job_id, cpus, started, exited, released in leases.order_by().values_list(
        "job_id", "cpus", "member__started_at", "member__exited_at", "released_at"
    ):
        seconds = charged_seconds(started, exited or released, since=start, until=end)
        if seconds:
            yield job_id, cpus * seconds


def _add_beside(
    total: DaySum, charged: float | None, row: Sequence[Any], start: datetime, end: datetime
) -> None:
    """Add the time beside a holder: charged to an equal, and free for a guest."""
    if charged is not None:
        total.guaranteed += charged
        return
    _, _, _, _, started, exited, released, *_ = row
    # A promotion may have ended the lease while the process runs.
    over = min((at for at in (exited, released) if at is not None), default=None)
    total.guest += charged_seconds(started, over, since=start, until=end)


def _devices_of_peers(start: datetime, end: datetime) -> set[int]:
    """Return the devices that jobs have shared as equals in a period."""
    rows = Lease.objects.filter(
        Q(released_at=None) | Q(released_at__gt=start), is_peer=True, taken_at__lt=end
    )
    return set(rows.order_by().values_list("device_id", flat=True))


def _delays(day: date) -> "QuerySet[GuestDelay, tuple[int, bool, float]]":
    return GuestDelay.objects.filter(day=day).values_list("job_id", "is_gpu", "seconds")


def _came_to_nothing(outcome: str, failure: str, cause: str | None) -> bool:
    return outcome == "failed" or _had_to_leave(outcome, failure, cause)


def _had_to_leave(outcome: str, failure: str, cause: str | None) -> bool:
    """Return whether an attempt was evicted, even if it saved its work and exited cleanly."""
    return end_reason(outcome=outcome, failure_class=failure, evicted_by=cause) in EVICTED


def _checkpoints(job_ids: set[int]) -> Mapping[tuple[int, int], datetime]:
    """Return the time of the last reported checkpoint of each attempt of some jobs."""
    found: dict[tuple[int, int], datetime] = {}
    for chunk in chunks(sorted(job_ids)):
        rows = (
            JobEvent.objects.filter(job_id__in=chunk, kind="checkpoint", attempt__isnull=False)
            .order_by()
            .values_list("job_id", "attempt")
            .annotate(newest=Max("at"))
        )
        found |= {(job_id, attempt): newest for job_id, attempt, newest in rows}
    return found


def chunks(ids: list[int], size: int = 500) -> Iterator[list[int]]:
    """Divide IDs into lists that fit into one statement."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def start_of(day: date) -> datetime:
    """Return the begin of a day in UTC."""
    return datetime.combine(day, time(), UTC)
