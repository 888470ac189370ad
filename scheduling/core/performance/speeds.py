"""Relative speeds of device types, from jobs that have run on several of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from math import exp, log
from typing import Final

import numpy as np

from scheduling.core.performance.reverts import is_long, pace
from scheduling.core.values import RunObservation

SAME_BATCH: Final = 1.1
"""Maximum ratio of the batches of two compared steps."""

_MOST: Final = log(64.0)


def relative_speeds(histories: Iterable[Sequence[RunObservation]]) -> Mapping[str, float]:
    """Return the speed of each comparable type, relative to the mean of all of them.

    Only runs of equal size are compared, so that no model is needed. Of two types the median of
    all histories counts, so that one job's reports hardly affect the others; the speeds are those
    that explain the medians best (least squares of their logarithms).

    Args:
        histories: the runs of a job, or of all jobs of an application, each.

    Returns:
        Speeds by type, without types that were never compared.
    """
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for runs in histories:
        if len({run.type for run in runs}) > 1:
            for pair, ratio in _compared(tuple(runs)):
                ratios[pair].append(ratio)
    kinds = sorted({kind for pair in ratios for kind in pair})
    if not kinds:
        return {}
    rows, told = np.zeros((len(ratios), len(kinds))), np.zeros(len(ratios))
    for row, (pair, found) in enumerate(sorted(ratios.items())):
        weight = len(found) ** 0.5
        rows[row, [kinds.index(kind) for kind in pair]] = weight, -weight
        told[row] = weight * np.median(found)
    # Of the many solutions the shortest: types that are not connected have a mean of their own.
    speeds, *_ = np.linalg.lstsq(rows, told, rcond=None)
    return {kind: exp(value) for kind, value in zip(kinds, speeds.tolist(), strict=True)}


@lru_cache(maxsize=8_192)
def _compared(runs: tuple[RunObservation, ...]) -> tuple[tuple[tuple[str, str], float], ...]:
    """Return the pairs of types with the logarithm of the speed-up on the first one."""
    sizes: dict[tuple[int, int], dict[str, RunObservation]] = defaultdict(dict)
    for run in sorted(runs):
        kinds = sizes[run.nodes, run.devices]
        kinds[run.type] = _together(kinds[run.type], run) if run.type in kinds else run
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kinds in sizes.values():
        for pair in combinations(sorted(kind for kind in kinds if is_long(kinds[kind])), 2):
            first, second = (kinds[kind] for kind in pair)
            told = first.samples > 0.0 and second.samples > 0.0
            if not told or _is_same_batch(first, second):
                found[pair].append(log(pace(first, told=told) / pace(second, told=told)))
    return tuple(
        (pair, min(_MOST, max(-_MOST, sum(logs) / len(logs)))) for pair, logs in found.items()
    )


def _together(one: RunObservation, run: RunObservation) -> RunObservation:
    return replace(
        one,
        seconds=one.seconds + run.seconds,
        steps=one.steps + run.steps,
        samples=one.samples + run.samples,
    )


def _is_same_batch(one: RunObservation, other: RunObservation) -> bool:
    low, high = sorted((one.samples / one.steps, other.samples / other.steps))
    return high <= SAME_BATCH * low
