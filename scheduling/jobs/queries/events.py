"""Events and past states of a job, without jobs that the viewer may not see."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Q

from scheduling.common.paging import DEFAULT_ROWS, Page, cut, page_limit, read_cursor
from scheduling.core.messages import sentence
from scheduling.jobs.models import CHECKPOINT, TEXT_MESSAGE, Job, JobEvent
from tenants.errors import NotFoundError
from tenants.viewers import ANOTHER_TENANT, Viewer
from tessera.messages import Sentence

FOR_JOB: Final = "for_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """One event of a job.

    Attributes:
        kind: a stable code (``submit``, ``admit``, ``preempt``, ...).
        state: state after the event; empty if the event did not change it.
        attempt: number of the attempt of the event.
        detail: other values; a text replaces each hidden job.
    """

    id: int
    at: datetime
    kind: str
    state: str
    attempt: int | None
    text: str
    detail: Mapping[str, Any]


def events_of_job(
    viewer: Viewer,
    job_id: int,
    *,
    cursor: str | None = None,
    limit: int = DEFAULT_ROWS,
    newest_first: bool = False,
    without: Collection[str] = (),
) -> Page[EventView]:
    """Return the events of one job, oldest first by default, ``without`` some kinds.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    limit = page_limit(limit)
    key = read_cursor(cursor)
    require_visible_job(viewer, job_id)
    events = JobEvent.objects.filter(job_id=job_id).order_by("-id" if newest_first else "id")
    if without:
        events = events.exclude(kind__in=without)
    if key:
        events = events.filter(id__lt=key[0]) if newest_first else events.filter(id__gt=key[0])
    rows = list(events[: limit + 1])
    known = visible_jobs_among(viewer, (row.detail.get(FOR_JOB) for row in rows))
    views = [_view(row, known) for row in rows]
    return cut(views, limit, lambda view: view.id)


def require_visible_job(viewer: Viewer, job_id: int) -> None:
    """Check that the viewer may see the job.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    if not Job.objects.visible_to(viewer).filter(pk=job_id).exists():
        raise no_such_job(job_id)


def no_such_job(job_id: object) -> NotFoundError:
    """Return the error for an unknown job; hidden jobs cause the same error."""
    return NotFoundError(sentence("no-such-job"), field="id", value=job_id)


def visible_jobs_among(viewer: Viewer, ids: Iterable[object]) -> frozenset[int]:
    """Return the subset of ``ids`` that are visible jobs, in at most one query."""
    wanted = {i for i in ids if isinstance(i, int) and not isinstance(i, bool)}
    if not wanted:
        return frozenset()
    return frozenset(
        Job.objects.visible_to(viewer).filter(pk__in=wanted).values_list("id", flat=True)
    )


def _view(row: JobEvent, known: frozenset[int]) -> EventView:
    detail = dict(row.detail)
    told = detail.pop(TEXT_MESSAGE, None)
    # 0 means no job: a node was drained, or the whole cluster was stopped.
    beneficiary = detail.pop(FOR_JOB, 0)
    if beneficiary in known:
        detail[FOR_JOB] = beneficiary
    elif beneficiary:
        detail["for"] = sentence("job-of-tenant", tenant=ANOTHER_TENANT)
    return EventView(
        id=row.pk,
        at=row.at,
        kind=row.kind,
        state=row.state,
        attempt=row.attempt,
        text=Sentence(row.text, told) if told is not None else row.text,
        detail=detail,
    )


MOST_LINES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """A change of a job's state at the time ``at``.

    Attributes:
        kind: the event that caused the change (``submit``, ``admit``, ``preempt``, ...).
        attempt: number of the attempt; None before the first.
        cause: kind of the rule of a preemption; empty if not recorded.
    """

    at: datetime
    kind: str
    state: str
    attempt: int | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class JobLife:
    """The newest part of a job's history, oldest first.

    Attributes:
        changes: changes of the state.
        checkpoints: times of checkpoint reports.
    """

    changes: tuple[StateChange, ...]
    checkpoints: tuple[datetime, ...]


def life_of_job(viewer: Viewer, job_id: int) -> JobLife:
    """Return the newest changes of state and checkpoints of one job, in two queries.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    newest = (
        JobEvent.objects.filter(~Q(state="") | Q(kind=CHECKPOINT), job_id=job_id)
        .order_by("-id")
        .values_list("at", "kind", "state", "attempt", "detail__cause")[:MOST_LINES]
    )
    lines = list(reversed(newest))
    return JobLife(
        changes=tuple(
            StateChange(at=at, kind=kind, state=state, attempt=attempt, cause=cause or "")
            for at, kind, state, attempt, cause in lines
            if state
        ),
        checkpoints=tuple(at for at, _, state, _, _ in lines if not state),
    )
