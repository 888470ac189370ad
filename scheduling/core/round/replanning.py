"""Replacement of the parallel plan of a running job, if the plan is barred meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduling.core.performance.reverts import SECONDS_TO_JUDGE, STEPS_TO_JUDGE
from scheduling.core.policy_interface import BestGrid
from scheduling.core.round.parallel_plans import (
    GridRow,
    PlanExclusion,
    PlanRun,
    barred_plans,
    best_grids,
)

HORIZON_SECONDS: Final = 3_600.0
"""Time within which a restart must pay, if the job does not end earlier."""
RESTARTS_TO_PAY: Final = 2.0
"""Minimum gain of a replacement, as a multiple of the duration of a start."""
SHORTEST_START: Final = 10.0
"""Assumed minimum duration of a start, with its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPlan:
    """A running attempt under a parallel plan.

    Attributes:
        type: device type.
        devices: number of devices.
        plan_id: ID of the plan.
        steps: reported steps of the attempt.
        seconds: their duration.
        start_seconds: duration of its start.
        steps_left: remaining steps of the job; None if unknown.
    """

    type: str
    devices: int
    plan_id: str
    steps: int
    seconds: float
    start_seconds: float
    steps_left: float | None = None

    @property
    def is_proven(self) -> bool:
        """Whether it has run long enough to show that it works."""
        return self.steps >= STEPS_TO_JUDGE and self.seconds >= SECONDS_TO_JUDGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The next plan of a running job, and the bar of its current one."""

    grid: BestGrid
    bar: PlanExclusion


def replacement_of(
    running: RunningPlan, rows: Sequence[GridRow], runs: Sequence[PlanRun]
) -> Replacement | None:
    """Return the plan that replaces a barred one on the same devices; None to continue.

    A plan that failed in another run is replaced unless this run has shown that it works. A plan
    that is slower than predicted is replaced if the next one gains more than two starts cost,
    within an hour or the remaining time. Each plan is barred once, so replacements end.

    Args:
        running: the attempt.
        rows: estimates of the grids of its model.
        runs: newest attempts of the same model, this one included.
    """
    bar = barred_plans(runs).get((running.type, running.plan_id))
    if bar is None:
        return None
    found = next(
        (
            grid
            for grid in best_grids(rows, runs, {})
            if (grid.type, grid.devices) == (running.type, running.devices)
        ),
        None,
    )
    if found is None or found.plan.get("id") == running.plan_id:
        return None
    if bar is PlanExclusion.SLOWER:
        pays = _gain(running, found) > RESTARTS_TO_PAY * max(running.start_seconds, SHORTEST_START)
    else:
        pays = not running.is_proven
    return Replacement(grid=found, bar=bar) if pays else None


def _gain(running: RunningPlan, grid: BestGrid) -> float:
    """Return the seconds that another plan saves within the horizon."""
    if not running.steps:
        return 0.0
    step = running.seconds / running.steps
    left = HORIZON_SECONDS if running.steps_left is None else running.steps_left * step
    return min(left, HORIZON_SECONDS) * (1.0 - 1.0 / (grid.rate * step))
