"""Decisions of shadow policies as the API shows them."""

from datetime import datetime
from typing import Any, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter

from portal.api.response_models import Body
from scheduling.selectors.shadows import ShadowRow, ShadowTotal

SINCE: Final = OpenApiParameter("since", str, description="ISO 8601 with offset; none: all kept.")


class ShadowJobsOut(TypedDict):
    """Jobs by number: whom it would have started, held back (with why) and stopped (by rule)."""

    starts: list[int]
    only_shadow: list[int]
    only_live: list[int]
    leaving: dict[str, str]
    sizes: dict[str, int]
    why: dict[str, str]


class ShadowOut(TypedDict):
    """One shadow's decision of a round; ``jobs`` is null once the round's file is gone."""

    virtual_cluster: str
    policy: str
    policy_args: dict[str, Any]
    at: datetime
    duration_ms: float
    fault: str
    agrees: bool
    starts: int
    both: int
    only_shadow: int
    only_live: int
    leaving: int
    jobs: ShadowJobsOut | None


class RoundShadowsOut(TypedDict):
    """The shadows of a round."""

    number: int
    shadows: list[ShadowOut]


class ShadowTotalOut(TypedDict):
    """A shadow over all rounds that it has decided."""

    virtual_cluster: str
    policy: str
    policy_args: dict[str, Any]
    rounds: int
    agreeing: int
    both: int
    only_shadow: int
    only_live: int
    leaving: int
    faults: int
    mean_ms: float
    max_ms: float
    since: datetime
    until: datetime


class ShadowTotalsOut(TypedDict):
    """The shadows of a virtual cluster."""

    shadows: list[ShadowTotalOut]


shadow_out = Body(ShadowOut, ShadowRow)
shadow_total_out = Body(ShadowTotalOut, ShadowTotal)
