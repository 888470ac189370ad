"""Objectives of training: which of two values of a metric is better."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_WORDS: Final = re.compile(r"[a-z]+|[0-9]+")
_LESS_IS_BETTER: Final = frozenset(
    ("loss", "error", "err", "perplexity", "ppl", "wer", "cer", "mse", "rmse", "mae", "nll", "fid")
)
_QUALITIES: Final = frozenset(("acc", "accuracy", "precision", "recall", "auc", "auroc", "map"))
_SCORES: Final = frozenset(("bleu", "rouge", "reward", "return", "score", "mrr", "ndcg"))
_OVERLAPS: Final = frozenset(("iou", "miou", "dice", "psnr", "ssim"))
_MORE_IS_BETTER: Final = _QUALITIES | _SCORES | _OVERLAPS
_F_SCORES: Final = re.compile(r"(?:^|[^a-z])f[0-9](?:$|[^0-9a-z])")


LONGEST_METRIC: Final = 100


class Goal(StrEnum):
    """The better direction of a metric."""

    MIN = "min"
    MAX = "max"

    def is_better(self, one: float, other: float) -> bool:
        """Return whether ``one`` is strictly better than ``other``."""
        return one < other if self is Goal.MIN else one > other

    def best(self, values: Sequence[float]) -> float:
        """Return the best of some finite values."""
        return min(values) if self is Goal.MIN else max(values)


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric by which the runs of a sweep are ranked."""

    metric: str
    goal: Goal


def usual_goal(metric: str) -> Goal | None:
    """Return the better direction that the name of a metric states; None if it states none.

    A name such as ``val/top1_error`` with words of both directions has the direction of its last
    word that has one.
    """
    name = metric.lower()
    found: Goal | None = Goal.MAX if _F_SCORES.search(name) else None
    for word in _WORDS.findall(name):
        if word in _LESS_IS_BETTER:
            found = Goal.MIN
        elif word in _MORE_IS_BETTER:
            found = Goal.MAX
    return found


def places_of_best(values: Sequence[float | None], goal: Goal | None) -> frozenset[int]:
    """Return the places of the best value, if at least two values differ.

    Args:
        values: finite values; None for a missing one.
        goal: the better direction; None if no value is better.
    """
    known = [value for value in values if value is not None]
    if goal is None or len(set(known)) < 2:
        return frozenset()
    best = goal.best(known)
    return frozenset(place for place, value in enumerate(values) if value == best)
