"""The states that a job has been through, for its timeline."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from scheduling.models import JobEvent
from scheduling.selectors.events import require_visible_job
from tenants.viewers import Viewer

MOST_CHANGES: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """From ``at`` on the job was in ``state``.

    Attributes:
        kind: what moved it (``submit``, ``admit``, ``preempt`` ...).
        attempt: number of the attempt it belongs to; None before the first.
    """

    at: datetime
    kind: str
    state: str
    attempt: int | None


def states_of_job(viewer: Viewer, job_id: int) -> tuple[StateChange, ...]:
    """The newest changes of state of one job, oldest first, in two queries.

    Raises:
        NotFoundError: there is no such job, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    newest = (
        JobEvent.objects.filter(job_id=job_id)
        .exclude(state="")
        .order_by("-id")
        .values_list("at", "kind", "state", "attempt")[:MOST_CHANGES]
    )
    return tuple(
        StateChange(at=at, kind=kind, state=state, attempt=attempt)
        for at, kind, state, attempt in reversed(newest)
    )
