"""The performance model for policies, from live jobs' reported speeds.

Jobs of one application share observations. Without any, twice the devices count as twice as fast,
and types have the same ratios as for the jobs that ran on several of them (equal before there are
any); a first run on any size and type sets the scale. The profiles of a job (measured on one
device of each type) replace these ratios, and its speed before the first run.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from math import exp, log
from typing import Final

import numpy as np

from scheduling.core.performance.batch_profiles import ProfiledSpeeds
from scheduling.core.performance.batches import fit_steps, limits_of, noise_of
from scheduling.core.performance.convergence import steps_until_flat
from scheduling.core.performance.goodput import Floats, best_batch
from scheduling.core.performance.hybrid import GridRates
from scheduling.core.performance.reverts import is_long, pace
from scheduling.core.policy_interface import PolicyJob, Shape
from scheduling.core.sharing.peers import PeerPairs
from scheduling.core.values import JobFacts, RunObservation, Timed

SAME_BATCH: Final = 1.1
"""Maximum ratio of the batches of two compared steps."""

_MOST: Final = log(64.0)


def relative_speeds(histories: Iterable[Sequence[RunObservation]]) -> Mapping[str, float]:
    """Return the speed of each comparable type, relative to the mean of all of them.

    Only runs of equal size are compared, so that no model is needed. The median over all histories
    counts for each pair of types, so that the reports of one job hardly affect others. The speeds
    fit the logarithms of the medians by least squares.

    Args:
        histories: the runs of each job, or of all jobs of each application.

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
    # Least squares return the shortest solution: each group of connected types has its own mean.
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


DEFAULT_RESTART_SECONDS = 30.0
_NOTHING = JobFacts()


class LiveModel:
    """Performance model of live jobs, fitted to their reports.

    Attributes:
        speeds: speeds of types that could be compared, relative to their mean.
    """

    def __init__(
        self,
        jobs: Sequence[PolicyJob],
        known: Mapping[int, JobFacts],
        pairs: PeerPairs | None = None,
    ) -> None:
        self._known, self._pairs = known, pairs
        runs: dict[str, list[RunObservation]] = defaultdict(list)
        for job in jobs:
            runs[_history(job)].extend(known.get(job.id, _NOTHING).seen)
        self._seen = {name: tuple(sorted(seen)) for name, seen in runs.items()}
        self.speeds = relative_speeds(self._seen.values())
        self._grids: dict[int, GridRates] = {}
        self._profiles: dict[int, ProfiledSpeeds] = {}
        self._timed: dict[str, dict[str, list[Timed]]] = defaultdict(lambda: defaultdict(list))
        for job in jobs:
            for one in known.get(job.id, _NOTHING).timed:
                self._timed[_history(job)][one.type].append(one)

    def goodputs(
        self,
        jobs: Sequence[PolicyJob],
        shapes: Sequence[Shape],
        *,
        within_request: bool = False,
    ) -> Floats:
        """Return steps per second, shape ``(jobs, shapes)``.

        If a job's batch may change, the unit is steps of its initial batch.
        """
        rows = [[self.rate(job, shape) for shape in shapes] for job in jobs]
        return np.array(rows, dtype=np.float64).reshape(len(jobs), len(shapes))

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Return steps per second: measured on this shape, or fitted, or proportional.

        A hybrid job has the rate of its best grid there, and 0 on shapes without a grid.
        """
        if job.types and shape.type not in job.types:
            return 0.0
        if job.grids:
            return self._of_grids(job).rate(shape)
        useful = self._goodput(job, shape)
        if useful is not None:
            return useful
        seen = self._seen.get(_history(job), ())
        if not seen:
            return shape.devices * self._before_run(job, shape.type)
        tried = (run.type for run in seen)
        return _rate(seen, shape) * self._against(job, seen[0].type, tried, shape.type)

    def _before_run(self, job: PolicyJob, kind: str) -> float:
        """Return the steps per second of one device: profiled, else relative to other types."""
        profiles = self._profiles_of(job)
        if not profiles.points:
            return self._speed(kind)
        first = min(profiles.points)
        source = kind if kind in profiles.points else first
        pace = profiles.samples_per_second(source) / (job.terms.batch or 1)
        return pace * self._against(job, source, profiles.points, kind)

    def _profiles_of(self, job: PolicyJob) -> ProfiledSpeeds:
        found = self._profiles.get(job.id)
        if found is None:
            found = ProfiledSpeeds(self._known.get(job.id, _NOTHING).profile)
            self._profiles[job.id] = found
        return found

    def _of_grids(self, job: PolicyJob) -> GridRates:
        rates = self._grids.get(job.id)
        if rates is None:
            seen = self._known.get(job.id, _NOTHING).seen
            rates = self._grids[job.id] = GridRates(job.grids, seen)
        return rates

    def _goodput(self, job: PolicyJob, shape: Shape) -> float | None:
        """Return steps of the initial batch per second at the best batch; None if unknown."""
        known = self._known.get(job.id, _NOTHING)
        limits = limits_of(job.terms)
        noise = noise_of(known.noise) or noise_of(known.profile_noise)
        profiled = self._profiles_of(job).points
        types: Mapping[str, Sequence[Timed]] = self._timed.get(_history(job)) or profiled
        if limits is None or noise is None or not types:
            return None
        source = shape.type if shape.type in types else min(types)
        more = profiled.get(source, ()) if types is not profiled else ()
        model = fit_steps(tuple(sorted((*types[source], *more))))
        if model is None:
            return None
        found = best_batch(model, noise, limits, shape.nodes, shape.devices)
        return found.goodput * self._against(job, source, types, shape.type)

    def _against(self, job: PolicyJob, first: str, tried: Iterable[str], kind: str) -> float:
        """Return the speed of an untried type relative to the first one; 1.0 for a tried type.

        The profiles of the job decide, else the ratio for jobs that ran on both types.
        """
        if kind in tried:
            return 1.0
        ratio = self._profiles_of(job).ratio(kind, first)
        if ratio is not None:
            return ratio
        if not self.speeds:
            return 1.0
        return self._speed(kind) / self._speed(first)

    def steps_left(self, job: PolicyJob, batch: int | None) -> float | None:
        """Return the remaining steps: declared, otherwise until the loss is flat, else None."""
        if job.facts.steps_left is not None:
            return job.facts.steps_left
        return steps_until_flat(job.facts.losses)

    def replica(self, job: PolicyJob, device_type: str) -> int:
        """Return 1: each replica uses one device."""
        return 1

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """Return the steps per second on one device of a type; of a hybrid job, per device."""
        if job.grids:
            return self._of_grids(job).speed(device_type)
        return self.rate(job, Shape(type=device_type, nodes=1, devices=1))

    def profiled(self, job: PolicyJob) -> Mapping[str, int]:
        """Return the maximum observed devices of the job, or of its application, by type.

        All grids of a hybrid job count as observed: their rates need no projection.
        """
        if job.grids:
            return self._of_grids(job).largest()
        most: dict[str, int] = {}
        for run in self._seen.get(_history(job), ()):
            most[run.type] = max(most.get(run.type, 0), run.devices)
        return most

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """Return the largest declared size; of a hybrid job, the largest with a grid."""
        if job.grids:
            return self._of_grids(job).largest().get(device_type, 0)
        return job.terms.scale.maximum if job.terms.scale else job.gang

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        """Return the mean duration of its starts; 30 s before the first one."""
        taken = self._known.get(job.id, _NOTHING).start_seconds
        return DEFAULT_RESTART_SECONDS if taken is None else taken

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Return the paces of two jobs on one device: measured, else guessed from their use.

        Without device sharing, each job gets half a device.
        """
        if self._pairs is None:
            return 0.5, 0.5
        utils = job.facts.util, other.facts.util
        paces = self._pairs.paces((job.id, other.id), utils, device_type)
        return paces.holder, paces.guest

    def _speed(self, device_type: str) -> float:
        return self.speeds.get(device_type, 1.0)


def _history(job: PolicyJob) -> str:
    return job.terms.application or f"#{job.id}"


@lru_cache(maxsize=65_536)
def _rate(seen: tuple[RunObservation, ...], shape: Shape) -> float:
    """Return the steps per second on a shape, in steps of the smallest observed batch."""
    batch = _batch(seen)
    same = [run for run in seen if (run.type, run.nodes, run.devices) == tuple(shape)]
    if same:
        return sum(_work(run, batch) for run in same) / sum(run.seconds for run in same)
    there = tuple(run for run in seen if run.type == shape.type)
    # An untried type counts as the first one on which the job was observed.
    fixed, shared = _fitted(there or tuple(run for run in seen if run.type == seen[0].type), batch)
    return 1.0 / (fixed + shared / shape.devices)


@lru_cache(maxsize=8_192)
def _fitted(seen: tuple[RunObservation, ...], batch: float) -> tuple[float, float]:
    """Fit the seconds of a step that no device shortens, and the seconds that devices share.

    Least squares of relative errors over both, neither below zero (Amdahl's law). Equal sizes do
    not determine the first part, so a job is tried on more.
    """
    ones = xx = x1 = y1 = xy = 0.0
    for run in seen:
        weight = _work(run, batch) / run.seconds  # steps per second
        part = weight / run.devices
        ones += weight * weight
        x1 += weight * part
        xx += part * part
        y1 += weight
        xy += part
    spread = ones * xx - x1 * x1
    if spread > 1e-9 * ones * xx:
        fixed, shared = (y1 * xx - xy * x1) / spread, (xy * ones - y1 * x1) / spread
        if fixed >= 0.0 and shared >= 0.0:
            return fixed, shared
        if shared < 0.0:
            return y1 / ones, 0.0
    return 0.0, xy / xx


def _batch(seen: tuple[RunObservation, ...]) -> float:
    """Return the samples of a step; 0 if a run did not report them, so that steps are counted."""
    return min(run.samples / run.steps for run in seen)


def _work(run: RunObservation, batch: float) -> float:
    """Return the steps of a run, in steps of the smallest batch."""
    return run.samples / batch if batch > 0.0 else run.steps
