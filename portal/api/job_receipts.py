"""Response shapes of preemption receipts, and of hashes of checkpoints."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.response_models import Body, From
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.core.determinism import Comparison
from scheduling.runs.queries.checkpoints import (
    CheckpointView,
    Compared,
    checkpoints_of_job,
    compare_jobs,
)
from scheduling.runs.queries.receipts import ReceiptView, receipts_of_job

_ATTEMPT: Final = OpenApiParameter(
    "attempt", int, description="Number of the attempt; default: all."
)
_COMPARED: Final = (
    _ATTEMPT,
    OpenApiParameter("with", int, description="The other job; default: this job."),
    OpenApiParameter("with_attempt", int, description="The other attempt; default: all."),
)


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

    ``for_job`` is null where it was for nobody in particular, or for a job that you may not see.
    ``released_at`` and ``lost_seconds`` are null while it leaves, ``lost_steps`` also where the
    job tells no steps.
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


class CheckpointOut(TypedDict):
    """A checkpoint; its hash covers all bits of the training state at this step."""

    at: datetime
    attempt: Annotated[int, From("receipt.attempt")]
    step: Annotated[int, From("receipt.step")]
    sha256: Annotated[str, From("receipt.sha256")]
    settings: Annotated[dict[str, str | int | float], From("receipt.settings")]
    bytes: Annotated[int | None, From("size")]
    seconds: float | None


class CheckpointsOut(TypedDict):
    """The latest checkpoints of a job, oldest first."""

    results: list[CheckpointOut]
    next_cursor: None


class DifferenceOut(TypedDict):
    """The first step at which two trainings differ, with both hashes."""

    step: int
    left: str
    right: str


def _first_difference(found: Comparison) -> DifferenceOut | None:
    if found.first_difference is None:
        return None
    return {"step": found.first_difference, "left": found.left, "right": found.right}


def _last(steps: Sequence[int]) -> int | None:
    return steps[-1] if steps else None


class ComparedOut(TypedDict):
    """A comparison of two trainings.

    ``same`` of the ``common`` steps, from the first on, have one hash. ``settings`` has what
    differs in what they say of themselves. ``changed_left`` and ``changed_right`` are steps that
    one of them has saved with several hashes.
    """

    common: Annotated[int, From("comparison.common", len)]
    same: Annotated[int, From("comparison.same")]
    last_common: Annotated[int | None, From("comparison.common", _last)]
    first_difference: Annotated[DifferenceOut | None, From("comparison", _first_difference)]
    settings: Annotated[dict[str, list[str]], From("comparison.settings")]
    changed_left: list[int]
    changed_right: list[int]


RECEIPTS: Final[Mapping[str, Op]] = {
    "preemptions": Op(answer=PreemptionsOut),
    "checkpoints": Op(takes=(_ATTEMPT,), answer=CheckpointsOut),
    "compare_checkpoints": Op(takes=_COMPARED, answer=ComparedOut),
}


class JobReceipts(ApiViewSet):
    """The part of jobs that shows receipts."""

    @action(detail=True, methods=["get"])
    def preemptions(self, request: Request, pk: int) -> Response:
        """List the preemption receipts of a job, oldest first."""
        results = [preemption_out(receipt) for receipt in receipts_of_job(self.viewer, pk)]
        return Response({"results": results, "next_cursor": None})

    @action(detail=True, methods=["get"])
    def checkpoints(self, request: Request, pk: int) -> Response:
        """List the latest checkpoints of a job with their hashes, oldest first."""
        attempt = self.query.number("attempt", default=0, most=2**31)
        found = checkpoints_of_job(self.viewer, pk, attempt=attempt or None)
        return Response({"results": [checkpoint_out(one) for one in found], "next_cursor": None})

    @action(detail=True, methods=["get"], url_path="checkpoints/compare")
    def compare_checkpoints(self, request: Request, pk: int) -> Response:
        """Compare the checkpoints of two jobs or attempts, and find the first difference."""
        attempt = self.query.number("attempt", default=0, most=2**31)
        other = self.query.number("with_attempt", default=0, most=2**31)
        found = compare_jobs(
            self.viewer,
            left=pk,
            left_attempt=attempt or None,
            right=self.query.number("with", default=pk, most=2**62),
            right_attempt=other or None,
        )
        return Response(compared_out(found))


preemption_out = Body(PreemptionOut, ReceiptView)
checkpoint_out = Body(CheckpointOut, CheckpointView)
compared_out = Body(ComparedOut, Compared)
