"""Lists of jobs in an order other than newest first.

The orders by figures have no index, since each one would slow every submit. They sort the newest
``SORTED_JOBS`` of the matching jobs, so that their cost does not grow with the number of jobs.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from scheduling.common.paging import DEFAULT_ROWS, Page, make_cursor, page_limit, read_cursor
from scheduling.core.lifecycle import TERMINAL
from scheduling.core.messages import sentence
from scheduling.jobs.queries.jobs import (
    NO_FILTER,
    JobFilter,
    JobRow,
    newest_jobs,
    page_of_jobs,
    rows_of_jobs,
)
from tenants.errors import InvalidError
from tenants.viewers import Viewer

SORTED_JOBS: Final = 1000


class JobOrder(StrEnum):
    """Order of a list of jobs."""

    NEWEST = "newest"
    OLDEST = "oldest"
    STARTED = "started"
    ENDED = "ended"
    LONGEST = "longest"
    DEVICES = "devices"
    DEVICE_HOURS = "device-hours"

    @property
    def is_partial(self) -> bool:
        """Return whether only the newest ``SORTED_JOBS`` matching jobs are sorted."""
        return self not in (JobOrder.NEWEST, JobOrder.OLDEST)


class JobFigures(NamedTuple):
    """Columns that the orders compare."""

    id: int
    state: str
    devices: int
    gpu_seconds: float
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


_Key = Callable[[JobFigures, datetime], float | None]


def _started(job: JobFigures, now: datetime) -> float | None:
    return job.started_at.timestamp() if job.started_at else None


def _ended(job: JobFigures, now: datetime) -> float | None:
    return job.finished_at.timestamp() if job.finished_at else None


def _length(job: JobFigures, now: datetime) -> float:
    """Return the displayed duration: of the run, or of the wait before it."""
    since = job.started_at or job.submitted_at
    return ((job.finished_at or now) - since).total_seconds()


def _devices(job: JobFigures, now: datetime) -> float:
    return job.devices


def _device_seconds(job: JobFigures, now: datetime) -> float:
    """Return device-seconds, with the time of the current attempt."""
    seconds = job.gpu_seconds
    if job.started_at is not None and job.state not in TERMINAL:
        seconds += job.devices * max(0.0, (now - job.started_at).total_seconds())
    return seconds


_KEYS: Final[Mapping[JobOrder, _Key]] = {
    JobOrder.STARTED: _started,
    JobOrder.ENDED: _ended,
    JobOrder.LONGEST: _length,
    JobOrder.DEVICES: _devices,
    JobOrder.DEVICE_HOURS: _device_seconds,
}


def job_order(name: str) -> JobOrder:
    """Return the order with this name; newest first without a name.

    Raises:
        InvalidError: the name is unknown.
    """
    if not name:
        return JobOrder.NEWEST
    if name not in list(JobOrder):
        raise InvalidError(
            sentence("no-job-order"),
            field="order",
            value=name[:40],
            remedy=sentence("use-one-of", names=", ".join(JobOrder)),
        )
    return JobOrder(name)


def page_in_order(
    viewer: Viewer,
    filters: JobFilter = NO_FILTER,
    order: JobOrder = JobOrder.NEWEST,
    *,
    now: datetime,
    cursor: str | None = None,
    limit: int = DEFAULT_ROWS,
) -> Page[JobRow]:
    """Return the jobs that the viewer may see in ``order``, in at most three queries.

    Jobs without the figure, such as the end of a running job, come last. The cursor of a partial
    order contains the newest job of its first page, so that later submits do not move its rows.

    Raises:
        InvalidError: a filter, the cursor or the limit is not valid.
    """
    if not order.is_partial:
        oldest_first = order is JobOrder.OLDEST
        return page_of_jobs(viewer, filters, cursor=cursor, limit=limit, oldest_first=oldest_first)
    limit = page_limit(limit)
    top, offset = read_cursor(cursor, parts=2) or (None, 0)
    before = None if top is None else top + 1
    newest = newest_jobs(viewer, filters, before=before, most=SORTED_JOBS)
    found = [JobFigures(*values) for values in newest.values_list(*JobFigures._fields)]
    ranked = _ranked(found[:SORTED_JOBS], order, now)
    wanted = ranked[offset : offset + limit] if offset >= 0 else []
    rows = rows_of_jobs(viewer, wanted)
    last = offset + limit
    return Page(
        tuple(rows[pk] for pk in wanted if pk in rows),
        make_cursor(max(ranked), last) if wanted and last < len(ranked) else None,
    )


def _ranked(found: list[JobFigures], order: JobOrder, now: datetime) -> list[int]:
    key = _KEYS[order]

    def place(job: JobFigures) -> tuple[Any, ...]:
        value = key(job, now)
        return (value is None, -(value or 0.0), -job.id)

    return [job.id for job in sorted(found, key=place)]
