"""Start times in several drawn futures, and the quantiles in them."""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from scheduling.core.forecast.durations import Lineage, RunTimes, stratified
from scheduling.core.jobspec import JobClass
from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.simulation import SimulatedCluster, SimulationSettings
from scheduling.core.simulation.guests import rules_of
from scheduling.core.values import ClusterSnapshot, QueuedJob

LEVELS: Final = (0.1, 0.5, 0.9)
DRIFT: Final = 0.7
"""Standard deviation of the logarithm by which all run times of one future are longer or shorter:
future jobs differ from past jobs, and their differences are correlated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Observed facts about the run time of one live job.

    Attributes:
        elapsed: run time so far in seconds, over all attempts.
        most: time limit in seconds from its start; None for no limit.
        left: remaining seconds by its own reports; None if not reported.
    """

    lineage: Lineage
    elapsed: float = 0.0
    most: float | None = None
    left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Futures:
    """Results of the simulated futures.

    Attributes:
        waits: seconds from the snapshot to the start by job, one for each future; infinite if it
            did not start before the horizon.
        tried: completed futures.
    """

    waits: Mapping[int, tuple[float, ...]]
    tried: int

    def quantiles(self, job_id: int) -> tuple[float, float, float] | None:
        """Return seconds at 10, 50 and 90 %, or None without a simulated start."""
        waits = sorted(self.waits.get(job_id, ()))
        if not waits or math.isinf(waits[0]):
            return None
        p10, p50, p90 = (_quantile(waits, level) for level in LEVELS)
        return p10, p50, p90


def jobs_without_limit(
    snapshot: ClusterSnapshot, job: QueuedJob, pasts: Mapping[int, Past]
) -> tuple[int, ...]:
    """Return the running jobs without a latest end that ``job`` waits for.

    A guaranteed job waits for those of its virtual cluster. If all of these have a limit, and for
    an opportunistic job, all running jobs count.
    """

    def is_unlimited(job_id: int) -> bool:
        past = pasts.get(job_id)
        return past is None or (past.most is None and past.left is None)

    holding = snapshot.holding
    if not job.demand.has_devices:
        holding = tuple(held.job for held in snapshot.cpu_holding)
    found = [one for one in holding if is_unlimited(one.id)]
    own = [one for one in found if one.vc == job.vc]
    is_borrower = job.job_class is JobClass.OPPORTUNISTIC
    return tuple(sorted(one.id for one in (found if is_borrower or not own else own)))


def try_futures(
    snapshot: ClusterSnapshot,
    times: RunTimes,
    pasts: Mapping[int, Past],
    *,
    futures: int,
    seed: int,
    settings: SimulationSettings,
    wanted: Collection[int] | None = None,
    go_on: Callable[[], bool] = lambda: True,
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
) -> Futures:
    """Simulate the live policies forward several times.

    A job that becomes a guest, or runs beside another one as its equal, has started.

    Args:
        snapshot: initial state of all futures.
        times: run times of jobs.
        pasts: observed facts of the live jobs.
        futures: maximum number of futures.
        seed: seed of the random draws; equal seeds draw equal futures.
        settings: settings of each future.
        wanted: jobs whose starts are estimated; None for all waiting jobs.
        go_on: called between steps; if it returns False, the current future is dropped (or
            truncated, if it is the first).
        limit: limits the time of each policy.
        make: builds a policy from its name and parameters.
    """
    jobs = [job.id for job in snapshot.queued] + [job.id for job in snapshot.holding]
    waiting = (*snapshot.queued, *snapshot.cpu_queued)
    targets = set(wanted) if wanted is not None else {job.id for job in waiting}
    drawn = remaining_draws(jobs, times, pasts, futures, seed)
    waits: dict[int, list[float]] = {job_id: [] for job_id in targets}
    guests = rules_of(snapshot)
    tried = 0
    for future in range(futures):

        def left(job_id: int, future: int = future) -> float:
            return float(drawn(job_id)[future])

        world = SimulatedCluster(
            snapshot, left, settings=settings, limit=limit, make=make, guests=guests
        )
        is_whole = _walk(world, targets, go_on)
        if not is_whole and tried:
            break
        for job_id in targets:
            start = world.record.starts.get(job_id)
            if start is not None:
                waits[job_id].append(start - snapshot.now)
            elif is_whole:
                waits[job_id].append(math.inf)
        tried += 1
        if not is_whole:
            break
    return Futures(waits={job: tuple(found) for job, found in waits.items()}, tried=tried)


def _walk(world: SimulatedCluster, targets: set[int], go_on: Callable[[], bool]) -> bool:
    """Simulate until all targets start or no events remain; return False if interrupted."""
    missing = set(targets)
    while True:
        result = world.decide()
        missing.difference_update(start.job_id for start in (*result.starts, *result.cpu_starts))
        missing.difference_update(guest.job_id for guest in result.guests)
        missing.difference_update(peer.seat.job_id for peer in result.peers)
        missing.difference_update(refused.job_id for refused in result.rejections)
        if not missing:
            return True
        due = world.next_time()
        if due is None:
            return True
        if not go_on():
            return False
        world.advance(due)


def remaining_draws(
    jobs: list[int],
    times: RunTimes,
    pasts: Mapping[int, Past],
    futures: int,
    seed: int,
) -> Callable[[int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]:
    """Draw the remaining run times by job, one for each future, at the first use.

    Args:
        jobs: live jobs that are certainly needed; other jobs may be requested, too.
        times: run times of jobs.
        pasts: observed facts of the live jobs.
        futures: number of futures.
        seed: seed of the random draws; equal seeds draw equal futures.
    """
    known: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    drift = drifts(futures, seed)

    def of(job_id: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        if job_id not in known:
            past = pasts.get(job_id, Past(lineage=()))
            if past.left is not None:
                spread = stratified([job_id], futures, seed)[job_id]
                found = np.maximum(past.left, 1.0) * np.exp(0.2 * (2.0 * spread - 1.0))
                if past.most is not None:
                    found = np.minimum(found, max(past.most - past.elapsed, 1.0))
                known[job_id] = found
            else:
                found = drift * times.remaining(
                    past.lineage,
                    stratified([job_id], futures, seed)[job_id],
                    elapsed=past.elapsed,
                )
                if past.most is not None:
                    found = np.minimum(found, max(past.most - past.elapsed, 1.0))
                known[job_id] = found
        return known[job_id]

    return of


def drifts(futures: int, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the factor of all run times of each future."""
    return np.exp(DRIFT * _normal_quantiles(futures, seed))


def _normal_quantiles(futures: int, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return shuffled, evenly spread quantiles of the standard normal distribution."""
    normal = NormalDist()
    spread = [normal.inv_cdf((place + 0.5) / futures) for place in range(futures)]
    return np.array(np.random.default_rng([seed, 0]).permutation(spread))


def _quantile(ordered: list[float], level: float) -> float:
    """Interpolate linearly between two futures; infinite if the later one is."""
    place = level * len(ordered) - 0.5
    low = min(max(math.floor(place), 0), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    share = min(max(place - low, 0.0), 1.0)
    if share == 0.0 or ordered[low] == ordered[high]:
        return ordered[low]
    return ordered[low] + share * (ordered[high] - ordered[low])
