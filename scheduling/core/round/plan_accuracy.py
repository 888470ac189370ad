"""Accuracy of predicted step times: the relative error of each run, by device type."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles

from scheduling.core.performance.reverts import SECONDS_TO_JUDGE, STEPS_TO_JUDGE
from scheduling.core.round.parallel_plans import PlanRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAccuracy:
    """Errors of predictions on one device type.

    Attributes:
        type: device type.
        runs: number of runs with a prediction and enough steps.
        median_error: median of ``|measured / predicted - 1|``.
        p90_error: its 90th percentile.
        bias: median of ``measured / predicted - 1``; above 0, steps take longer than predicted.
    """

    type: str
    runs: int
    median_error: float
    p90_error: float
    bias: float


def accuracy_by_type(runs: Iterable[PlanRun]) -> tuple[PlanAccuracy, ...]:
    """Return the accuracy of each type by name; types without a sufficiently long run have none.

    Args:
        runs: runs whose predictions do not come from measured steps.
    """
    errors: dict[str, list[float]] = {}
    for run in runs:
        is_long = run.steps >= STEPS_TO_JUDGE and run.seconds >= SECONDS_TO_JUDGE
        if run.predicted and is_long:
            measured = run.seconds / run.steps
            errors.setdefault(run.type, []).append(measured / run.predicted - 1.0)
    return tuple(_accuracy(kind, found) for kind, found in sorted(errors.items()))


def _accuracy(kind: str, errors: list[float]) -> PlanAccuracy:
    sizes = [abs(error) for error in errors]
    tenths = quantiles(sizes, n=10, method="inclusive") if len(sizes) > 1 else sizes
    return PlanAccuracy(
        type=kind,
        runs=len(errors),
        median_error=median(sizes),
        p90_error=tenths[-1],
        bias=median(errors),
    )
