"""Plans as the API shows them."""

from typing import Any, Literal, TypedDict

from portal.api.job_shapes import NoEtaOut, ReasonOut
from scheduling.core.forecast.horizon import is_open
from scheduling.core.values import PlacedMember
from scheduling.core.variants import Step
from scheduling.services.planning import JobPlan


class PlannedMemberOut(TypedDict):
    """One rank and the devices it would get."""

    role: str
    rank: int
    node: str
    devices: list[int]
    cells: list[str]


class AlternativeOut(TypedDict):
    """A change with which the job would start now; new values by path in the document."""

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


class PlanOut(TypedDict):
    """What would become of a job; nothing was submitted."""

    fits: Literal["now", "later", "never"]
    reason: ReasonOut
    starts: StartsOut | None
    no_starts: NoEtaOut | None
    placement: list[PlannedMemberOut]
    alternatives: list[AlternativeOut]
    blocked_by: list[int]
    blocked_by_others: int
    unblock: list[str]
    warnings: list[str]


def plan_out(plan: JobPlan) -> PlanOut:
    """What would become of a job."""
    return {
        "fits": plan.fits.value,
        "reason": {"code": plan.code, "text": plan.text},
        "starts": starts_out(plan.starts, plan.gate),
        "no_starts": {"text": plan.no_starts, "jobs": list(plan.unlimited)}
        if plan.no_starts
        else None,
        "placement": [_member_out(member) for member in plan.placement],
        "alternatives": [_alternative_out(alternative) for alternative in plan.alternatives],
        "blocked_by": list(plan.blocked_by),
        "blocked_by_others": plan.blocked_by_others,
        "unblock": list(plan.unblock),
        "warnings": list(plan.warnings),
    }


def starts_out(starts: tuple[float, float, float] | None, gate: float = 0.0) -> StartsOut | None:
    """Seconds from now; None: not known."""
    if starts is None:
        return None
    p10, p50, p90 = (round(seconds, 1) for seconds in starts)
    return {"p10": p10, "p50": p50, "p90": p90, "open": is_open(p90), "gate": round(gate, 1)}


def _member_out(member: PlacedMember) -> PlannedMemberOut:
    return {
        "role": member.role,
        "rank": member.rank,
        "node": member.node,
        "devices": list(member.device_indices),
        "cells": [leaf.address for leaf in member.leaves],
    }


def _alternative_out(alternative: Step) -> AlternativeOut:
    return {
        "kind": alternative.kind,
        "text": alternative.text,
        "changes": dict(alternative.changes),
    }
