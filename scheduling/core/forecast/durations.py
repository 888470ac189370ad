"""Run times of jobs: hazards by group, each shrunk towards the group above it.

Runs of the same person, program and virtual cluster are similar, but most groups have few observed
runs. A discrete-time Kaplan-Meier estimate (Kaplan and Meier, JASA 1958) counts unfinished runs up
to their current age. The hazard of the wider group counts like a fixed number of runs in the
hazard of a group.

No run reaches the last bins, where the hazard is small: a few drawn runs last for months. Start
estimates are quantiles, so that this only widens them. Means need ``RunTimes.for_means``.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Lineage: TypeAlias = tuple[str, ...]

EDGES: Final[Floats] = np.concatenate(([0.0], np.geomspace(1.0, 120 * 86400.0, 84)))
"""Bounds of the bins in seconds; the hazard within one is spread evenly over its logarithm."""

LEAN: Final = 4.0
"""Weight of the wider group in a narrower one, as a number of runs."""

_SHORT, _SHORT_HAZARD, _HAZARD, _PRIOR_RUNS = 60.0, 0.01, 0.05, 4.0
_NUMBERS: Final = re.compile(r"[-_.]?[0-9]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """One run of a job on devices.

    Attributes:
        lineage: its groups, the widest first.
        seconds: run time so far.
        ended: the job has ended; otherwise it still runs, or was preempted.
    """

    lineage: Lineage
    seconds: float
    ended: bool = True


def lineage_of(
    *, vc: int, owner: int, application: str | None, name: str, devices: int
) -> Lineage:
    """Return the groups of a job, widest first: cluster, size, owner, program, name."""
    size = f"vc{vc}/n{max(devices, 1).bit_length()}"
    mine = f"vc{vc}/u{owner}"
    groups = [f"vc{vc}", size, mine]
    if application:
        groups.append(f"{mine}/a:{application}")
    stem = _NUMBERS.sub("", name) or name
    groups.append(f"{mine}/j:{stem}/n{devices}")
    return tuple(groups)


class RunTimes:
    """Run times of groups, from observed runs."""

    def __init__(self, runs: Iterable[RunTime]) -> None:
        seen: dict[str, list[tuple[float, bool]]] = defaultdict(list)
        for run in runs:
            for group in ("", *run.lineage):
                seen[group].append((max(run.seconds, 0.0), run.ended))
        self._counts = {group: _counts(found) for group, found in seen.items()}
        self._known: dict[Lineage, Floats] = {}
        self._has_tails = False

    def for_means(self) -> "RunTimes":
        """Return the same run times for uses of their means, not only of their quantiles.

        Above the median of a group, its mean hazard there counts instead of that of the wider
        group. Per bin of the logarithm, it is the tail index of Hill (Annals of Statistics 1975),
        with unfinished runs.
        """
        found = RunTimes(())
        found._counts, found._has_tails = self._counts, True
        return found

    def remaining(
        self,
        lineage: Lineage,
        chances: Sequence[float] | Floats,
        *,
        elapsed: float = 0.0,
        most: float | None = None,
    ) -> Floats:
        """Return the remaining run time of a job at each of the given probabilities of its end.

        Args:
            lineage: groups of the job, widest first.
            chances: probabilities in (0, 1).
            elapsed: run time so far, in seconds.
            most: time limit in seconds from its start; None for no limit.

        Returns:
            Positive seconds from now, with the shape of ``chances``.
        """
        left = self._left(lineage)
        now = _log_hazard_until(left, elapsed)
        wanted = now - np.log1p(-np.asarray(chances, dtype=np.float64))
        total = _seconds_at(left, wanted)
        if most is not None:
            total = np.minimum(total, max(most, elapsed))
        return np.maximum(total - elapsed, 1.0)

    def _left(self, lineage: Lineage) -> Floats:
        """Return the cumulative hazard at the edges."""
        known = self._known.get(lineage)
        if known is None:
            hazard = np.where(EDGES[1:] <= _SHORT, _SHORT_HAZARD, _HAZARD)
            lean = _PRIOR_RUNS
            for group in ("", *lineage):
                counts = self._counts.get(group)
                if counts is not None:
                    ends, at_risk = counts
                    if self._has_tails:
                        hazard = _with_tail(hazard, ends, at_risk, lean)
                    hazard = (ends + lean * hazard) / (at_risk + lean)
                lean = LEAN
            steps = -np.log1p(-np.minimum(hazard, 0.999))
            known = self._known[lineage] = np.concatenate(([0.0], np.cumsum(steps)))
        return known


def _with_tail(hazard: Floats, ends: Floats, at_risk: Floats, lean: float) -> Floats:
    """Return the wider group's hazard, above the median with this group's mean hazard there."""
    begin = int(np.searchsorted(np.cumsum(ends), 0.5 * max(float(ends.sum()), 1.0)))
    if begin >= len(hazard):  # no run has ended
        return hazard
    mean = (ends[begin:].sum() + lean * hazard[begin:]) / (at_risk[begin:].sum() + lean)
    return np.concatenate((hazard[:begin], mean))


def _counts(found: list[tuple[float, bool]]) -> tuple[Floats, Floats]:
    """Return the ends in each bin, and runs that could have ended in it."""
    seconds = np.array([one for one, _ in found])
    ended = np.array([end for _, end in found])
    place = np.clip(np.searchsorted(EDGES, seconds, side="right") - 1, 0, len(EDGES) - 2)
    ends = np.bincount(place[ended], minlength=len(EDGES) - 1).astype(np.float64)
    cut = np.bincount(place[~ended], minlength=len(EDGES) - 1).astype(np.float64)
    there = (ends + cut)[::-1].cumsum()[::-1]
    return ends, np.maximum(there - 0.5 * cut, ends)


def _log_hazard_until(left: Floats, seconds: float) -> float:
    return float(np.interp(_scale(np.array([seconds])), _SCALED, left)[0])


def _seconds_at(left: Floats, wanted: Floats) -> Floats:
    # All runs that have not ended yet end in the last bin.
    found: Floats = np.expm1(np.interp(wanted, left, _SCALED))
    return found


def _scale(seconds: Floats) -> Floats:
    found: Floats = np.log1p(seconds)
    return found


_SCALED: Final[Floats] = _scale(EDGES)


def stratified(jobs: Sequence[int], futures: int, seed: int) -> Mapping[int, Floats]:
    """Draw one chance per job and future, spread evenly over (0, 1) and well mixed."""
    drawn: dict[int, Floats] = {}
    for job in jobs:
        lots = np.random.default_rng([seed, job])
        drawn[job] = (lots.permutation(futures) + lots.random(futures)) / futures
    return drawn
