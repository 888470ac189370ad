"""Choice of a policy from replays of the same jobs under every policy.

A policy is comparable if it completes as many jobs as the policy in force and none of its
decisions failed. The recommended policy has the lowest mean completion time of the comparable
policies that are better by ``LEAST_GAIN`` and do not harm the slowest and the least fairly served
jobs by more than ``MOST_HARM``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any, Final

LEAST_GAIN: Final = 0.02
"""Minimum share by which the recommended policy shortens the mean; replays differ by 1 %."""

MOST_HARM: Final = 0.1
"""Maximum share by which its 99th percentile and worst unfairness may be higher."""


class AdviceVerdict(StrEnum):
    """Result of the advice."""

    CHANGE = "change"
    KEEP = "keep"
    HARMS_TAIL = "harms-tail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """Figures of one policy over the replayed jobs; None without completed jobs.

    Attributes:
        mean: mean time from submission to completion, in seconds.
        p99: its 99th percentile, in seconds.
        unfairness: worst finish-time fairness; 1 is a fair share.
        restarts: per job.
        failed_decisions: decisions in which the policy failed.
        fault: reason for which the replay has no figures; empty if it has.
    """

    policy: str
    policy_args: Mapping[str, Any]
    completed: int = 0
    mean: float | None = None
    p99: float | None = None
    unfairness: float | None = None
    restarts: float = 0.0
    failed_decisions: int = 0
    fault: str = ""

    def __post_init__(self) -> None:
        """Reject figures that are not finite or negative."""
        for value in (self.mean, self.p99, self.unfairness, self.restarts):
            if value is not None and not (isfinite(value) and value >= 0.0):
                raise ValueError(f"a figure of {self.policy!r} is {value}; use 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Mean completion of the policy in force, compared with the best comparable policy.

    Attributes:
        best: name of the policy with the lowest mean.
        seconds: difference of the means, at least 0.
        share: difference, relative to the best mean.
    """

    best: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The recommended policy; ``place`` is its index in the outcomes, None for no change."""

    verdict: AdviceVerdict
    place: int | None
    regret: Regret | None


def advice_of(in_force: PolicyOutcome, others: Sequence[PolicyOutcome]) -> Advice:
    """Return the recommendation and the regret.

    Args:
        in_force: outcome of the policy in force.
        others: outcomes of the other policies; the first of equal ones wins.
    """
    if in_force.mean is None or in_force.fault:
        return Advice(verdict=AdviceVerdict.UNKNOWN, place=None, regret=None)
    comparable = [
        (mean, place)
        for place, other in enumerate(others)
        if (mean := comparable_mean(other, in_force)) is not None
    ]
    better = sorted(one for one in comparable if one[0] <= (1.0 - LEAST_GAIN) * in_force.mean)
    place = next((i for _, i in better if not harms_tail(others[i], in_force)), None)
    verdict = AdviceVerdict.CHANGE if place is not None else AdviceVerdict.KEEP
    if place is None and better:
        verdict = AdviceVerdict.HARMS_TAIL
    means = [(in_force.mean, in_force.policy)]
    means += [(mean, others[i].policy) for mean, i in comparable]
    return Advice(verdict=verdict, place=place, regret=_regret(in_force.mean, means))


def comparable_mean(other: PolicyOutcome, in_force: PolicyOutcome) -> float | None:
    """Return the mean completion of a comparable policy, else None."""
    if other.fault or other.failed_decisions or other.completed < in_force.completed:
        return None
    return other.mean


def harms_tail(other: PolicyOutcome, in_force: PolicyOutcome) -> bool:
    """Return whether the slowest or the least fairly served job is worse than allowed."""
    return any(
        theirs is not None and ours is not None and theirs > (1.0 + MOST_HARM) * ours
        for theirs, ours in (
            (other.p99, in_force.p99),
            (other.unfairness, in_force.unfairness),
        )
    )


def _regret(mean: float, means: Iterable[tuple[float, str]]) -> Regret:
    lowest, best = min(means, key=lambda one: one[0])
    seconds = mean - lowest
    return Regret(best=best, seconds=seconds, share=seconds / lowest if lowest > 0.0 else 0.0)
