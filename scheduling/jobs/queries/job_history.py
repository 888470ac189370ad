"""The states that a job has been through and its checkpoints, for its timeline."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import Q

from scheduling.jobs.models import JobEvent
from scheduling.jobs.queries.events import require_visible_job
from tenants.viewers import Viewer

MOST_LINES: Final = 1000
CHECKPOINT: Final = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """From ``at`` on the job was in ``state``.

    Attributes:
        kind: what moved it (``submit``, ``admit``, ``preempt`` ...).
        attempt: number of the attempt it belongs to; None before the first.
        cause: of a preemption, by what kind of rule; empty where that was not written down.
    """

    at: datetime
    kind: str
    state: str
    attempt: int | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class JobLife:
    """The newest of what a job has been through, oldest first.

    Attributes:
        changes: of its state.
        checkpoints: when one was heard of.
    """

    changes: tuple[StateChange, ...]
    checkpoints: tuple[datetime, ...]


def life_of_job(viewer: Viewer, job_id: int) -> JobLife:
    """The newest changes of state and checkpoints of one job, in two queries.

    Raises:
        NotFoundError: there is no such job, or the viewer may not see it.
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
