"""Remedies of a waiting job, and the certificate of its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

from django.conf import settings
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.documents import ground_for, round_config
from portal.api.job_shapes import JobOut, RefusedOut, StepOut, job_out, refused_out, step_out
from portal.api.request_models import read_body
from portal.api.response_models import Body, From
from portal.api.schema import IF_MATCH, Op
from portal.api.views import ApiViewSet, expected_digest, versioned
from scheduling.core.explanations.certificates import Certificate
from scheduling.core.explanations.unblocking import Refused, Sought
from scheduling.core.jobspec.amending import version_of
from scheduling.core.reasons import ReasonCode
from scheduling.estimates.services.certificates import CheckedCertificate, checked_reason
from scheduling.estimates.services.unblocking import seek_now
from scheduling.jobs.models import Job
from scheduling.jobs.queries.job_columns import ASK_A_LEAD, waits_for_a_lead
from scheduling.jobs.queries.jobs import rows_of_jobs, visible_job
from scheduling.jobs.services.amendments import amend_job
from tenants.clock import database_now


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendIn:
    """New values by path in the specification; null removes a field."""

    changes: Mapping[str, Any] = field(default_factory=dict)


class UnblockOut(TypedDict):
    """Changes with which a waiting job starts now, or the certificate that there is none.

    `is_whole`: everything was tried; false where time ran out.
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


UNBLOCKING: Final[Mapping[str, Op]] = {
    "unblock": Op(answer=UnblockOut),
    "amend": Op(takes=(IF_MATCH,), body=AmendIn, answer=JobOut),
    "evidence": Op(answer=EvidenceOut),
}


class JobUnblocking(ApiViewSet):
    """Methods of jobs for explanations of waits, and changes of waiting jobs."""

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
            ground=ground_for(self.viewer),
            now=database_now(),
            seen=expected_digest(request),
        )
        row = rows_of_jobs(self.viewer, [pk])[pk]
        return versioned(job_out(row), version_of(changed.spec))

    @action(detail=True, methods=["get"])
    def evidence(self, request: Request, pk: int) -> Response:
        """Get the certificate of the reason of a job, checked against the stored snapshot."""
        job = visible_job(self.viewer, pk)
        found = checked_reason(job=job, data_dir=Path(settings.TESSERA.data_dir))
        return Response(evidence_out(found))


def left_to_leads(job: Job) -> Sought:
    """Return no remedy for a job that only a lead releases, with that fact as certificate."""
    line = Refused(
        virtual_cluster=job.virtual_cluster.name,
        job_class=job.job_class,
        code=ReasonCode.HELD,
        message=ASK_A_LEAD,
    )
    return Sought(proof=(line,))


def unblock_out(job_id: int, found: Sought) -> UnblockOut:
    """Return the remedies found for one job."""
    return {
        "id": job_id,
        "steps": [step_out(step.to_json()) for step in found.steps],
        "proof": [refused_out(refused.to_json()) for refused in found.proof],
        "is_whole": found.is_whole,
    }


evidence_out = Body(EvidenceOut, CheckedCertificate)
