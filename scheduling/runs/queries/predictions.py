"""Predicted speed of an elastic job at other sizes, and the cost of its restarts."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.policy_interface import JobPhase, PolicyJob
from scheduling.core.values import JobFacts
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import visible_job
from scheduling.rounds.snapshot.performance_facts import known_of_job
from scheduling.runs.models import Preemption
from tenants.viewers import Viewer

if TYPE_CHECKING:
    from scheduling.core.performance.saturation import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Predictions for an elastic job at other sizes.

    Attributes:
        prediction: predicted speeds; None before the first reported step.
        restarts: number of restarts.
        start_seconds: mean duration of a start; None before the first start.
        lost_seconds: work lost by preemptions so far.
    """

    prediction: "Prediction | None"
    restarts: int
    start_seconds: float | None
    lost_seconds: float


def outlook_of_job(viewer: Viewer, job_id: int, *, now: datetime) -> Outlook | None:
    """Return predictions of an elastic job at other sizes; None for a job of fixed size.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    job = visible_job(viewer, job_id)
    if "elastic" not in job.terms:
        return None
    from scheduling.core.performance.saturation import predicted  # noqa: PLC0415  brings NumPy

    known = known_of_job(job, now)
    lost = Preemption.objects.filter(job=job, lost_seconds__isnull=False)
    return Outlook(
        prediction=predicted(_as_policies_see(job, known), known),
        restarts=known.facts.restarts,
        start_seconds=known.start_seconds,
        lost_seconds=sum(
            seconds or 0.0 for seconds in lost.values_list("lost_seconds", flat=True)
        ),
    )


def _as_policies_see(job: Job, known: JobFacts) -> PolicyJob:
    return PolicyJob(
        id=job.pk,
        owner=job.owner_id,
        priority=job.priority,
        job_class=JobClass(job.job_class),
        submitted=job.submitted_at.timestamp(),
        demand=Demand.from_json(job.demand),
        phase=JobPhase.QUEUED,
        since=job.submitted_at.timestamp(),
        terms=known.terms,
    )
