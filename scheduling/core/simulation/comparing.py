"""Several policies on the same workloads and seeds: paired ratios with confidence intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from scheduling.core.workloads.traces import SimulationError

#: Figures that are better when lower, with their labels and units.
METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "avg_jct_h": ("Mean completion", "h"),
    "p50_jct_h": ("Median completion", "h"),
    "p90_jct_h": ("90th percentile", "h"),
    "p99_jct_h": ("99th percentile", "h"),
    "makespan_h": ("Makespan", "h"),
    "worst_ftf": ("Worst fairness", "x"),
    "gpu_hours_per_job": ("Device-hours per job", "h"),
    "avg_restarts": ("Restarts per job", ""),
}
_LEVEL: Final = 0.95
_RESAMPLES: Final = 2_000
_SEED: Final = 20_231


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRun:
    """One simulation of a comparison.

    Attributes:
        document: the public document of its result.
    """

    policy: str
    workload: str
    seed: int
    document: Mapping[str, Any]

    @property
    def pair(self) -> tuple[str, int]:
        """The fields shared with the compared runs."""
        return self.workload, self.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A policy's figure over the baseline's, over pairs of runs.

    Attributes:
        mean: arithmetic mean of the ratios.
        geometric: their geometric mean, the centre of the interval.
        low: lower end of the 95 % interval; None with too few data.
        method: method of the interval: ``t`` over the logarithms of pairs, ``bootstrap`` over the
            jobs of the only pair, or empty.
    """

    mean: float
    geometric: float
    low: float | None
    high: float | None
    pairs: int
    method: str

    def to_json(self) -> dict[str, Any]:
        """Return the form of the report's JSON."""
        return {
            "mean": round(self.mean, 6),
            "geometric": round(self.geometric, 6),
            "low": None if self.low is None else round(self.low, 6),
            "high": None if self.high is None else round(self.high, 6),
            "pairs": self.pairs,
            "method": self.method,
        }


def ratio(runs: Sequence[ComparisonRun], policy: str, baseline: str, metric: str) -> Ratio | None:
    """Compare a policy's figure with the baseline's.

    Args:
        runs: all runs.
        policy: label of the policy to compare.
        baseline: label of the policy to divide by.
        metric: a key of ``METRICS``.

    Returns:
        The means of ratios in pairs of one workload and seed; None where no pair has both
        figures above 0.
    """
    theirs = {run.pair: run for run in runs if run.policy == baseline}
    pairs = [
        (run, theirs[run.pair])
        for run in runs
        if run.policy == policy
        and run.pair in theirs
        and run.document[metric]
        and theirs[run.pair].document[metric]
    ]
    values = [mine.document[metric] / other.document[metric] for mine, other in pairs]
    if not values:
        return None
    logs = [log(value) for value in values]
    method = "t"
    low, high = t_interval(logs)
    if low is not None and high is not None:
        low, high = exp(low), exp(high)
    elif metric == "avg_jct_h":
        low, high = _bootstrapped(*pairs[0])
        method = "bootstrap"
    return Ratio(
        mean=float(np.mean(values)),
        geometric=exp(float(np.mean(logs))),
        low=low,
        high=high,
        pairs=len(values),
        method=method if low is not None else "",
    )


def t_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Compute Student's 95 % interval of a mean; (None, None) for fewer than two values."""
    if len(values) < 2:
        return None, None
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, 0.5 + _LEVEL / 2.0)) * error
    return mean - reach, mean + reach


def compare(runs: Sequence[ComparisonRun], baseline: str) -> dict[str, Any]:
    """Build the document of a comparison: figures by policy, and ratios to the baseline.

    Args:
        runs: runs in any order; each policy has one for each workload and seed.
        baseline: label of the policy to compare with.

    Raises:
        SimulationError: the baseline has no runs.
    """
    policies = list(dict.fromkeys(run.policy for run in runs))
    if baseline not in policies:
        raise SimulationError(f"the baseline {baseline!r} is not one of {', '.join(policies)}")
    return {
        "baseline": baseline,
        "policies": [_summary(runs, policy, baseline) for policy in policies],
        "runs": [
            {**run.document, "policy": run.policy, "workload": run.workload, "seed": run.seed}
            for run in runs
        ],
    }


def _summary(runs: Sequence[ComparisonRun], policy: str, baseline: str) -> dict[str, Any]:
    mine = [run.document for run in runs if run.policy == policy]
    figures: dict[str, Any] = {}
    for metric in METRICS:
        known = [document[metric] for document in mine if document[metric] is not None]
        found = ratio(runs, policy, baseline, metric)
        figures[metric] = {
            "mean": round(float(np.mean(known)), 6) if known else None,
            "ratio": found.to_json() if found else None,
        }
    return {
        "policy": policy,
        "runs": len(mine),
        **{
            key: sum(document[key] for document in mine)
            for key in ("jobs", "completed", "censored", "refused", "failures")
        },
        "figures": figures,
    }


def _bootstrapped(mine: ComparisonRun, other: ComparisonRun) -> tuple[float | None, float | None]:
    """Bootstrap the 95 % interval of a ratio of mean completion times over the jobs of a pair."""
    both = _paired_jcts(mine.document, other.document)
    if len(both) < 2 or not both[:, 1].all():
        return None, None
    chance = np.random.default_rng(_SEED)
    ratios = np.empty(_RESAMPLES)
    for index in range(_RESAMPLES):
        sums = both[chance.integers(0, len(both), len(both))].sum(axis=0)
        ratios[index] = sums[0] / sums[1]
    low, high = np.percentile(ratios, [50.0 - 50.0 * _LEVEL, 50.0 + 50.0 * _LEVEL])
    return float(low), float(high)


def _paired_jcts(mine: Mapping[str, Any], other: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the completion times of the jobs that are complete in both, shape ``(jobs, 2)``."""
    rows = [
        (one["finish_s"] - one["submit_s"], two["finish_s"] - two["submit_s"])
        for one, two in zip(mine["per_job"], other["per_job"], strict=True)
        if one["finish_s"] is not None and two["finish_s"] is not None
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), 2)
