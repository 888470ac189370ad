"""What would let a waiting job start, and the proof of why it waits, as the API shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from portal.api.job_shapes import RefusedOut, StepOut, refused_out, step_out
from portal.api.response_models import Body, From
from scheduling.core.certificates import Certificate
from scheduling.core.reasons import ReasonCode
from scheduling.core.unblocking import Refused, Sought
from scheduling.models import Job
from scheduling.selectors.holds import ASK_A_LEAD
from scheduling.services.certificates import Checked


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendIn:
    """New values by path in the specification; null takes a field away."""

    changes: Mapping[str, Any] = field(default_factory=dict)


class UnblockOut(TypedDict):
    """Changes with which a waiting job starts now, or the proof that there is none.

    `is_whole`: everything was tried; false where time ran out.
    """

    id: int
    steps: list[StepOut]
    proof: list[RefusedOut]
    is_whole: bool


class EvidenceOut(TypedDict):
    """A certificate of why a job waited, and whether it holds on what its round has stored."""

    certificate: Annotated[dict[str, Any], From("certificate", Certificate.to_json)]
    holds: bool
    file: str


def left_to_leads(job: Job) -> Sought:
    """Nothing to send for a job that only a lead releases, with that as the proof."""
    line = Refused(
        virtual_cluster=job.virtual_cluster.name,
        job_class=job.job_class,
        code=ReasonCode.HELD,
        message=ASK_A_LEAD,
    )
    return Sought(proof=(line,))


def unblock_out(job_id: int, found: Sought) -> UnblockOut:
    """What was found for one job."""
    return {
        "id": job_id,
        "steps": [step_out(step.to_json()) for step in found.steps],
        "proof": [refused_out(refused.to_json()) for refused in found.proof],
        "is_whole": found.is_whole,
    }


evidence_out = Body(EvidenceOut, Checked)
