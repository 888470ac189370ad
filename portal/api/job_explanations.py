"""Explanations of jobs: plans, remedies and certificates of waits, and preemption receipts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypedDict

from django.conf import settings
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body
from portal.api.documents import profile_config, round_config, submit_context_for
from portal.api.job_shapes import (
    JobOut,
    NoEtaOut,
    ReasonOut,
    RefusedOut,
    StepOut,
    job_out,
    refused_out,
    step_out,
)
from portal.api.schema import IF_MATCH, Op
from portal.api.views import ApiViewSet, Nothing, expected_digest, versioned
from scheduling.core.explanations.certificates import Certificate
from scheduling.core.explanations.unblocking import Refused, Sought
from scheduling.core.forecast import is_open
from scheduling.core.jobspec.amending import version_of
from scheduling.estimates.services.explanations import CheckedCertificate, checked_reason, seek_now
from scheduling.estimates.services.submit_plans import JobPlan
from scheduling.jobs.models import Job
from scheduling.jobs.queries.job_columns import ASK_A_LEAD, waits_for_a_lead
from scheduling.jobs.queries.jobs import rows_of_jobs, visible_job
from scheduling.jobs.services.amendments import amend_job
from scheduling.jobs.services.ownership import require_own
from scheduling.parallelism.drafts import DraftGrids
from scheduling.parallelism.queries import parallelism_of_job
from scheduling.parallelism.services import request_profile
from scheduling.parallelism.views import JobParallelism
from scheduling.runs.queries.receipts import ReceiptView, receipts_of_job
from scheduling.storage.opening import open_storage
from tenants.clock import database_now
from tessera.reasons import ReasonCode


class PlannedMemberOut(TypedDict):
    """A member of a gang and the devices that the plan gives it."""

    role: str
    rank: int
    node: str
    devices: Annotated[list[int], From("device_indices")]
    cells: Annotated[list[str], From("leaves", lambda leaves: [leaf.address for leaf in leaves])]


class AlternativeOut(TypedDict):
    """A change with which the job would start now; `changes` has new values by path."""

    kind: str
    text: str
    changes: dict[str, Any]


class StartsOut(TypedDict):
    """A start estimate in seconds from now (p10, p50, p90); if `open`, p90 is a lower bound.

    `gate`: seconds until `not_before` or a dependency of the job allows a start.
    """

    p10: float
    p50: float
    p90: float
    open: bool
    gate: float


def starts_out(starts: tuple[float, float, float] | None, gate: float = 0.0) -> StartsOut | None:
    if starts is None:
        return None
    p10, p50, p90 = (round(seconds, 1) for seconds in starts)
    return {"p10": p10, "p50": p50, "p90": p90, "open": is_open(p90), "gate": round(gate, 1)}


def _no_starts_of(plan: JobPlan) -> NoEtaOut | None:
    return {"text": plan.no_starts, "jobs": list(plan.unlimited)} if plan.no_starts else None


class PlanOut(TypedDict):
    """The plan of a job; nothing is submitted."""

    fits: Literal["now", "later", "never"]
    reason: Annotated[ReasonOut, From()]
    starts: Annotated[StartsOut | None, From(by=lambda plan: starts_out(plan.starts, plan.gate))]
    no_starts: Annotated[NoEtaOut | None, From(by=_no_starts_of)]
    placement: list[PlannedMemberOut]
    alternatives: list[AlternativeOut]
    blocked_by: list[int]
    blocked_by_others: int
    unblock: list[str]
    warnings: list[str]


plan_out = Body(PlanOut, JobPlan)


class DraftGridOut(TypedDict):
    """The fastest grid of a number of devices of a type; nothing is submitted."""

    type: str
    devices: int
    stages: int
    shape: str
    samples_per_second: float
    is_measured: bool


class DraftGridsOut(TypedDict):
    """Grids of a hybrid job before its submit, at most 24; `hidden` is the number of others.

    `sizes`: numbers of devices that the job allows. `to_profile`: types that profile jobs would
    measure.
    """

    sizes: list[int]
    most_stages: int
    grids: list[DraftGridOut]
    to_profile: list[str]
    hidden: int


draft_grids_out = Body(DraftGridsOut, DraftGrids)


class JobPlanOut(PlanOut):
    """The plan of a job; `grids` is null for a job without `parallel`."""

    grids: DraftGridsOut | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendIn:
    """New values by path in the specification; null removes a field."""

    changes: Mapping[str, Any] = field(default_factory=dict)


class UnblockOut(TypedDict):
    """Changes with which a waiting job starts now, or the certificate that none exists.

    `is_whole` is false if the time limit ended the search before all changes were tried.
    """

    id: int
    steps: list[StepOut]
    proof: list[RefusedOut]
    is_whole: bool


class EvidenceOut(TypedDict):
    """The certificate of a reason, and whether it holds on the stored snapshot of its round."""

    certificate: Annotated[dict[str, Any], From("certificate", Certificate.to_json)]
    holds: bool
    file: str


class SavedOut(TypedDict):
    """The last checkpoint that a job saved before its preemption."""

    step: int | None
    sha256: str
    at: datetime


def _checkpoint_of(receipt: ReceiptView) -> SavedOut | None:
    if receipt.checkpoint_at is None:
        return None
    return {
        "step": receipt.checkpoint_step,
        "sha256": receipt.checkpoint_sha256,
        "at": receipt.checkpoint_at,
    }


class PreemptionOut(TypedDict):
    """A preemption receipt: both jobs, the rule, and the lost work.

    ``for_job`` is null if the preemption was not for one job, or if you may not see that job.
    ``released_at`` and ``lost_seconds`` are null until the job has left its devices.
    ``lost_steps`` is also null if the job does not report steps.
    """

    attempt: int
    cause: str
    rule: str
    by: str
    for_job: int | None
    for_text: str
    grace_seconds: int
    asked_at: datetime
    acknowledged_at: datetime | None
    checkpoint: Annotated[SavedOut | None, From(by=_checkpoint_of)]
    released_at: datetime | None
    forced: bool
    lost_steps: int | None
    lost_seconds: float | None


class PreemptionsOut(TypedDict):
    """The preemptions of a job, oldest first."""

    results: list[PreemptionOut]
    next_cursor: None


class GridOut(TypedDict):
    """One grid: a device type, a number of devices and a number of pipeline stages.

    ``plan`` is its best plan as in ``TESSERA_JOB_PLAN``, empty if no plan can run; ``reason`` then
    has the cause. Times are in seconds per step.
    """

    type: str
    devices: int
    stages: int
    state: str
    reason: str
    shape: str
    predicted: float | None
    measured: float | None
    samples_per_second: float | None
    source: str
    fullest_bytes: float | None
    fullest_stage: int | None
    limit_bytes: float | None
    is_running: bool
    plan: dict[str, Any]


class AttemptPlanOut(TypedDict):
    """The plan of one attempt; times are in seconds per step."""

    attempt: int
    at: datetime
    ended_at: datetime | None
    type: str
    devices: int
    shape: str
    source: str
    predicted: float | None
    measured: float | None
    plan: dict[str, Any]


class ProfileOut(TypedDict):
    """The profile of the model on one device type; ``measured_at`` is null without a result."""

    type: str
    version: str
    measured_at: datetime | None
    job: int | None
    seconds: float | None


class PlanAccuracyOut(TypedDict):
    """Errors of predicted step times in the tenant, on one device type, as shares.

    ``bias`` above 0: steps take longer than predicted.
    """

    type: str
    runs: int
    median_error: float
    p90_error: float
    bias: float


class GridsOut(TypedDict):
    """Grids of a hybrid job, the plans of its attempts (newest first), and its profiles."""

    fingerprint: str
    batch: int
    micro_batches: int
    schedule: str
    why: str
    grids: list[GridOut]
    plans: list[AttemptPlanOut]
    profiles: list[ProfileOut]
    accuracy: list[PlanAccuracyOut]


class ProfilingOut(TypedDict):
    """The new profile jobs; empty while earlier ones measure."""

    jobs: list[int]


EXPLANATIONS: Final[Mapping[str, Op]] = {
    "unblock": Op(answer=UnblockOut),
    "amend": Op(takes=(IF_MATCH,), body=AmendIn, answer=JobOut),
    "evidence": Op(answer=EvidenceOut),
    "preemptions": Op(answer=PreemptionsOut),
    "grids": Op(answer=GridsOut),
    "profile": Op(answer=ProfilingOut),
}


class JobExplanations(ApiViewSet):
    """Actions of jobs that explain waits and preemptions, and that amend waiting jobs."""

    @action(detail=True, methods=["get"])
    def unblock(self, request: Request, pk: int) -> Response:
        """List changes with which a waiting job starts now, tested on the current snapshot.

        Send the `changes` of one entry to `amend/`.
        """
        job = visible_job(self.viewer, pk)
        if waits_for_a_lead(self.viewer, job):
            return Response(unblock_out(job.pk, left_to_leads(job)))
        found = seek_now(job=job, config=round_config(), now=database_now())
        return Response(unblock_out(job.pk, found))

    @action(detail=True, methods=["post"])
    def amend(self, request: Request, pk: int) -> Response:
        """Amend a queued job; its ID, submit time and secrets are unchanged."""
        wanted = read_body(AmendIn, request.data)
        changed = amend_job(
            job=visible_job(self.viewer, pk),
            changes=wanted.changes,
            viewer=self.viewer,
            submit_context=submit_context_for(self.viewer),
            now=database_now(),
            seen=expected_digest(request),
        )
        row = rows_of_jobs(self.viewer, [pk])[pk]
        return versioned(job_out(row), version_of(changed.spec))

    @action(detail=True, methods=["get"])
    def evidence(self, request: Request, pk: int) -> Response:
        """Get the certificate of the reason of a job, checked against the stored snapshot."""
        job = visible_job(self.viewer, pk)
        found = checked_reason(job=job, storage=open_storage(settings.TESSERA.storage))
        return Response(evidence_out(found))

    @action(detail=True, methods=["get"])
    def preemptions(self, request: Request, pk: int) -> Response:
        """List the preemption receipts of a job, oldest first."""
        results = [preemption_out(receipt) for receipt in receipts_of_job(self.viewer, pk)]
        return Response({"results": results, "next_cursor": None})

    @action(detail=True, methods=["get"])
    def grids(self, request: Request, pk: int) -> Response:
        """Get the grids, plans and profiles of a job with hybrid parallelism."""
        return Response(grids_out(parallelism_of_job(self.viewer, pk)))

    @action(detail=True, methods=["post"])
    def profile(self, request: Request, pk: int) -> Response:
        """Profile the model of a job again, by a small job on each of its device types."""
        read_body(Nothing, request.data)
        job = visible_job(self.viewer, pk)
        require_own(job=job, viewer=self.viewer)
        return Response(
            {"jobs": request_profile(job=job, config=profile_config(), now=database_now())}
        )


def left_to_leads(job: Job) -> Sought:
    """Return a certificate without remedies for a held job that only a lead may release."""
    line = Refused(
        virtual_cluster=job.virtual_cluster.name,
        job_class=job.job_class,
        code=ReasonCode.HELD,
        message=ASK_A_LEAD,
    )
    return Sought(proof=(line,))


def unblock_out(job_id: int, found: Sought) -> UnblockOut:
    return {
        "id": job_id,
        "steps": [step_out(step.to_json()) for step in found.steps],
        "proof": [refused_out(refused.to_json()) for refused in found.proof],
        "is_whole": found.is_whole,
    }


grids_out = Body(GridsOut, JobParallelism)
evidence_out = Body(EvidenceOut, CheckedCertificate)
preemption_out = Body(PreemptionOut, ReceiptView)
