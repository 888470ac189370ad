"""Plans as the API shows them."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypedDict

from portal.api.job_shapes import NoEtaOut, ReasonOut
from portal.api.response_models import Body, From
from scheduling.core.forecast.horizon import is_open
from scheduling.core.values import HeldLeaf
from scheduling.estimates.services.submit_plans import JobPlan


def _addresses(leaves: Iterable[HeldLeaf]) -> list[str]:
    return [leaf.address for leaf in leaves]


class PlannedMemberOut(TypedDict):
    """A rank and the devices that it would get."""

    role: str
    rank: int
    node: str
    devices: Annotated[list[int], From("device_indices")]
    cells: Annotated[list[str], From("leaves", _addresses)]


class AlternativeOut(TypedDict):
    """A change with which the job would start now; new values by path in the specification."""

    kind: str
    text: str
    changes: dict[str, Any]


class StartsOut(TypedDict):
    """When a job starts, in seconds from now, at 10, 50 and 90 %; `open`: p90 or later.

    `gate`: seconds for which `not_before` or a job that it waits for stays a gate.
    """

    p10: float
    p50: float
    p90: float
    open: bool
    gate: float


def starts_out(starts: tuple[float, float, float] | None, gate: float = 0.0) -> StartsOut | None:
    """Seconds from now; None: not known."""
    if starts is None:
        return None
    p10, p50, p90 = (round(seconds, 1) for seconds in starts)
    return {"p10": p10, "p50": p50, "p90": p90, "open": is_open(p90), "gate": round(gate, 1)}


def _starts_of(plan: JobPlan) -> StartsOut | None:
    return starts_out(plan.starts, plan.gate)


def _no_starts_of(plan: JobPlan) -> NoEtaOut | None:
    return {"text": plan.no_starts, "jobs": list(plan.unlimited)} if plan.no_starts else None


class PlanOut(TypedDict):
    """The plan of a job; nothing is submitted."""

    fits: Literal["now", "later", "never"]
    reason: Annotated[ReasonOut, From()]
    starts: Annotated[StartsOut | None, From(by=_starts_of)]
    no_starts: Annotated[NoEtaOut | None, From(by=_no_starts_of)]
    placement: list[PlannedMemberOut]
    alternatives: list[AlternativeOut]
    blocked_by: list[int]
    blocked_by_others: int
    unblock: list[str]
    warnings: list[str]


plan_out = Body(PlanOut, JobPlan)
