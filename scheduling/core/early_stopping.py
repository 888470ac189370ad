"""Early stops of sweeps: which runs end because others are better at the same step.

The rules have no state: they read the curves of all runs, so a repeated check has the same result.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import Final

from scheduling.core.objectives import Goal

LEAST_RUNS: Final = 3
"""Other runs that the median rule needs."""
LEAST_REDUCTION: Final = 2
MOST_REDUCTION: Final = 10
MOST_STEP: Final = 1 << 53


class StopRule(StrEnum):
    """Rules of early stops.

    ``median``: a run ends if its best value is worse than the median of the mean values of the
    other runs up to the same step (Golovin et al., *Google Vizier*, KDD 2017, section 3.2.1).

    ``asha``: asynchronous successive halving (Li et al., *A System for Massively Parallel
    Hyperparameter Tuning*, MLSys 2020, algorithm 2), as a stopping rule: a run ends if it is not
    among the best 1/``reduction`` of the runs that have reached its rung.
    """

    MEDIAN = "median"
    ASHA = "asha"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Settings of early stops.

    Attributes:
        rule: the rule.
        first_step: no run ends before it; the first rung of ``asha``.
        reduction: factor between two rungs, and the inverse of the share that continues.
    """

    rule: StopRule
    first_step: int
    reduction: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.first_step <= MOST_STEP:
            raise ValueError(f"first_step must be 1 to {MOST_STEP}, not {self.first_step}")
        if not LEAST_REDUCTION <= self.reduction <= MOST_REDUCTION:
            raise ValueError(
                f"reduction must be {LEAST_REDUCTION} to {MOST_REDUCTION}, not {self.reduction}"
            )


@dataclass(frozen=True, slots=True)
class RunCurve:
    """Finite values of the objective of a run.

    Attributes:
        steps: in any order.
        values: one for each step.
        is_live: whether the run can end early.
    """

    steps: Sequence[int]
    values: Sequence[float]
    is_live: bool

    @property
    def last_step(self) -> int:
        """The greatest step; -1 without values."""
        return max(self.steps, default=-1)

    def until(self, step: int) -> list[float]:
        """Return the values up to a step, inclusive."""
        return [value for at, value in zip(self.steps, self.values, strict=True) if at <= step]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFinding:
    """Why a run ends.

    Attributes:
        step: the step at which it was compared.
        value: its best value up to this step.
        bound: the value that it would have needed.
        runs: number of runs compared, this one included.
    """

    step: int
    value: float
    bound: float
    runs: int


def runs_to_stop(
    runs: Mapping[int, RunCurve], *, goal: Goal, settings: EarlyStop
) -> dict[int, StopFinding]:
    """Return the live runs that end now, with the reason of each.

    Args:
        runs: all runs of a sweep by ID, ended ones included.
        goal: the better direction.
        settings: the rule.
    """
    find = _by_median if settings.rule is StopRule.MEDIAN else _by_halving
    return dict(find(runs, goal, settings))


def _by_median(
    runs: Mapping[int, RunCurve], goal: Goal, settings: EarlyStop
) -> Iterator[tuple[int, StopFinding]]:
    for number, run in runs.items():
        step = run.last_step
        own = run.until(step)
        if not run.is_live or not own or step < settings.first_step:
            continue
        means = [
            fmean(values)
            for other, curve in runs.items()
            if other != number and curve.last_step >= step and (values := curve.until(step))
        ]
        if len(means) < LEAST_RUNS:
            continue
        value, bound = goal.best(own), median(means)
        if goal.is_better(bound, value):
            yield number, StopFinding(step=step, value=value, bound=bound, runs=len(means) + 1)


def _by_halving(
    runs: Mapping[int, RunCurve], goal: Goal, settings: EarlyStop
) -> Iterator[tuple[int, StopFinding]]:
    at_rung: dict[int, dict[int, float]] = {}
    for number, run in runs.items():
        for rung in rungs(run.last_step, settings):
            if values := run.until(rung):
                at_rung.setdefault(rung, {})[number] = goal.best(values)
    for number, run in runs.items():
        reached = list(rungs(run.last_step, settings))
        if not run.is_live or not reached:
            continue
        found = at_rung.get(reached[-1], {})
        if number not in found or len(found) < settings.reduction:
            continue
        ranked = sorted(found.values(), reverse=goal is Goal.MAX)
        bound = ranked[max(1, len(ranked) // settings.reduction) - 1]
        if goal.is_better(bound, found[number]):
            yield (
                number,
                StopFinding(step=reached[-1], value=found[number], bound=bound, runs=len(found)),
            )


def rungs(last_step: int, settings: EarlyStop) -> Iterator[int]:
    """Yield the rungs that a run with this last step has reached, ascending."""
    rung = settings.first_step
    while rung <= last_step:
        yield rung
        rung *= settings.reduction
