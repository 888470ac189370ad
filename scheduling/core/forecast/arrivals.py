"""Drawn futures with later submissions, which are resampled from recent ones.

The number of submissions is Poisson distributed with the rate of the recent span. Each of them
copies a recent job: its demand, owner, class and virtual cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduling.core.forecast.durations import Lineage, RunTimes
from scheduling.core.forecast.futures import Past, drifts, remaining_draws
from scheduling.core.simulation.progress_table import Remaining
from scheduling.core.values import ClusterSnapshot, JobFacts, QueuedJob

MOST_ARRIVALS: Final = 2_000
"""Mean number of submissions above which a future has fewer hours of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSubmission:
    """A recent job as it was submitted, without its gates, and the groups of its run time."""

    job: QueuedJob
    lineage: Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentSubmissions:
    """Jobs of the last ``seconds``, from which later submissions are drawn.

    Attributes:
        ahead: seconds from the snapshot in which later jobs are submitted.
    """

    jobs: Sequence[PastSubmission] = ()
    seconds: float = 1.0
    ahead: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterJobs:
    """Submissions of one future, and their run times in seconds by job ID."""

    jobs: tuple[QueuedJob, ...]
    run_seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Future:
    """One drawn future: remaining seconds of the live jobs, and the jobs submitted later."""

    left: Remaining
    later: LaterJobs

    @property
    def arrivals(self) -> tuple[tuple[QueuedJob, JobFacts], ...]:
        """The later jobs as a simulated cluster takes them."""
        return tuple((job, JobFacts()) for job in self.later.jobs)

    def remaining(self, job_id: int) -> float:
        """Return the remaining seconds of any job of this future."""
        seconds = self.later.run_seconds.get(job_id)
        return self.left(job_id) if seconds is None else seconds


def drawn_futures(
    snapshot: ClusterSnapshot,
    times: RunTimes,
    pasts: Mapping[int, Past],
    recent: RecentSubmissions,
    *,
    futures: int,
    seed: int,
) -> Callable[[int], Future]:
    """Return the future of each number below ``futures``, drawn at its first use.

    Args:
        snapshot: the initial state of all futures.
        times: run times of jobs.
        pasts: observed facts of the live jobs.
        recent: jobs like those that are submitted later.
        futures: number of futures.
        seed: seed of the random draws; equal seeds draw equal futures.
    """
    jobs = [job.id for job in snapshot.queued] + [job.id for job in snapshot.holding]
    drawn = remaining_draws(jobs, times, pasts, futures, seed)
    factors = drifts(futures, seed)
    first_id = max(jobs, default=0) + 1
    known: dict[int, Future] = {}

    def future_of(future: int) -> Future:
        if future not in known:
            later = draw_later_jobs(
                recent,
                times,
                now=snapshot.now,
                first_id=first_id,
                future=future,
                seed=seed,
                drift=float(factors[future]),
            )
            known[future] = Future(left=lambda job_id: float(drawn(job_id)[future]), later=later)
        return known[future]

    return future_of


def draw_later_jobs(
    recent: RecentSubmissions,
    times: RunTimes,
    *,
    now: float,
    first_id: int,
    future: int,
    seed: int,
    drift: float = 1.0,
) -> LaterJobs:
    """Draw the submissions of one future; equal seeds and futures draw equal ones.

    Args:
        recent: the jobs to copy.
        times: run times of jobs.
        now: time of the snapshot, in seconds since the epoch.
        first_id: ID of the first drawn job; all larger IDs must be free.
        future: number of the future.
        seed: seed of the random draws.
        drift: factor of all run times of this future.
    """
    if not recent.jobs or recent.ahead <= 0.0:
        return LaterJobs(jobs=(), run_seconds={})
    rng = np.random.default_rng([seed, 1, future])
    rate = len(recent.jobs) / recent.seconds
    ahead = min(recent.ahead, MOST_ARRIVALS / rate)
    number = int(rng.poisson(rate * ahead))
    offsets = np.sort(rng.random(number)) * ahead
    chosen = rng.integers(len(recent.jobs), size=number)
    chances = rng.random(number)
    jobs: list[QueuedJob] = []
    seconds: dict[int, float] = {}
    for place, (offset, which, chance) in enumerate(zip(offsets, chosen, chances, strict=True)):
        source = recent.jobs[int(which)]
        job_id = first_id + place
        jobs.append(replace(source.job, id=job_id, submitted=now + float(offset)))
        seconds[job_id] = drift * float(times.remaining(source.lineage, np.array([chance]))[0])
    return LaterJobs(jobs=tuple(jobs), run_seconds=seconds)
