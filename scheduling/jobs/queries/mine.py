"""Jobs of one person for their start page; each query reads a bounded number of rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, F, Sum

from scheduling.core.lifecycle import HOLDING, LIVE, JobState
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import JobRow, rows_of_jobs
from tenants.viewers import Viewer

FAILURES_READ: Final = 200
FAILURES_FOR: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCounts:
    """Live jobs of a person.

    Attributes:
        jobs: number of jobs by state.
        devices: devices that they request or hold, by state.
        borrowed: held devices of opportunistic jobs.
    """

    jobs: Mapping[str, int]
    devices: Mapping[str, int]
    borrowed: int

    @property
    def holding(self) -> int:
        """Return the number of jobs that hold devices."""
        return sum(self.jobs.get(state, 0) for state in HOLDING)

    @property
    def held(self) -> int:
        """Return the number of devices that the jobs hold."""
        return sum(self.devices.get(state, 0) for state in HOLDING)

    @property
    def queued(self) -> int:
        """Return the number of jobs that wait."""
        return self.jobs.get(JobState.QUEUED, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed job with the message of its end."""

    row: JobRow
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The newest failures since a time.

    Attributes:
        shown: the newest ones.
        count: number of failures among the newest ``FAILURES_READ`` failed jobs.
        is_more: there may be more than ``count``.
    """

    shown: tuple[Failure, ...]
    count: int
    is_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """End of a job as its specification declares it; None if it does not."""

    total_steps: int | None
    epochs: int | None


def own_counts(viewer: Viewer) -> OwnCounts:
    """Return the live jobs of the viewer, in one query."""
    rows = (
        Job.objects.visible_to(viewer)
        .filter(owner_id=viewer.user_id, state__in=LIVE)
        .order_by()
        .values_list("state", "job_class")
        .annotate(jobs=Count("id"), wanted=Sum("devices"))
    )
    jobs: dict[str, int] = {}
    devices: dict[str, int] = {}
    borrowed = 0
    for state, job_class, number, wanted in rows:
        jobs[state] = jobs.get(state, 0) + number
        devices[state] = devices.get(state, 0) + wanted
        if job_class == "opportunistic" and state in HOLDING:
            borrowed += wanted
    return OwnCounts(jobs=jobs, devices=devices, borrowed=borrowed)


def own_failures(viewer: Viewer, *, since: datetime, most: int) -> Failures:
    """Return the viewer's failed jobs that ended after ``since``, newest first; three queries.

    Only the newest ``FAILURES_READ`` failed jobs are read.
    """
    newest = (
        Job.objects.visible_to(viewer)
        .filter(owner_id=viewer.user_id, state=JobState.FAILED)
        .order_by("-id")
        .values_list("id", "finished_at")[:FAILURES_READ]
    )
    read = list(newest)
    ended = sorted(((at, pk) for pk, at in read if at is not None and at > since), reverse=True)
    ids = [pk for _, pk in ended[:most]]
    rows = rows_of_jobs(viewer, ids) if ids else {}
    messages: dict[int, str] = {}
    if ids:
        told = Job.objects.visible_to(viewer).filter(pk__in=ids)
        messages = dict(told.values_list("id", "end_message"))
    return Failures(
        shown=tuple(
            Failure(row=rows[pk], message=messages.get(pk, "")) for pk in ids if pk in rows
        ),
        count=len(ended),
        is_more=len(read) == FAILURES_READ and len(ended) == FAILURES_READ,
    )


def declared_ends(job_ids: Iterable[int]) -> Mapping[int, Declared]:
    """Return the declared ends of jobs by ID; the caller has checked the rights."""
    rows = Job.objects.unscoped().filter(pk__in=list(job_ids)).annotate(elastic=F("spec__elastic"))
    return {pk: _declared(elastic or {}) for pk, elastic in rows.values_list("pk", "elastic")}


def _declared(elastic: Mapping[str, Any]) -> Declared:
    steps, epochs = elastic.get("total_steps"), elastic.get("epochs")
    return Declared(
        total_steps=steps if isinstance(steps, int) else None,
        epochs=epochs if isinstance(epochs, int) else None,
    )
