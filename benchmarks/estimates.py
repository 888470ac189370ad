"""Start estimates compared with actual starts: traces replayed under live policies.

Each trace is replayed by the rounds themselves with its true run times. When some jobs have
arrived and have to wait, their starts are estimated from the data available at that time: run
times of ended and running jobs, and errors of earlier estimates. Future run times and arrivals are
not used. If most futures do not reach the start, the estimate is from past waits, as in the
portal. The results are compared with the quantiles of the completed waits in the same virtual
cluster. The first part of each trace is only for training.

    python -m benchmarks.estimates [--held-out] [--jobs N] [--futures N] [--case NAME ...]

Without ``--case``, the tuning cases are run; with ``--held-out``, the other cases.
"""

import argparse
import json
import os
import sys
import time
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from operator import itemgetter
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.estimate_cases import CASES, Case, empty_cluster, jobs_of, queued_jobs
from scheduling.core.forecast import HORIZON
from scheduling.core.forecast.calibration import (
    Basis,
    Calibration,
    Forecast,
    PastEstimate,
    pinball,
)
from scheduling.core.forecast.durations import RunTime, RunTimes, lineage_of
from scheduling.core.forecast.futures import Past, try_futures
from scheduling.core.forecast.usual import Quantiles
from scheduling.core.policy_interface import Terms
from scheduling.core.simulation import SimulatedCluster, SimulationSettings
from scheduling.core.values import JobFacts
from scheduling.core.workloads.traces import TraceJob

TEACHES: Final = 0.4
SETTINGS: Final = SimulationSettings(horizon=HORIZON, coarse=0.1, most_waiting=100)
TOGETHER: Final = 4
"""Number of newly waiting jobs that are estimated together; more in long queues:"""

CROWD_PART: Final = 8
"""at least one in this many of the waiting jobs."""

LEAST_WAITS: Final = 5
"""Minimum number of completed waits for the comparison."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One estimate from the futures, and the outcome; times on the trace's clock.

    Attributes:
        quantiles: seconds from ``at`` on; None: most futures ended before the start, so that
            only past waits could give an estimate.
        devices: requested devices of the job.
        counts: whether it is outside the training part of the trace.
    """

    job: int
    vc: int
    submitted: float
    at: float
    quantiles: Quantiles | None
    devices: int
    start: float
    counts: bool

    def told(self, quantiles: Quantiles | None) -> PastEstimate:
        """Return the estimate as input of ``Calibration``."""
        return PastEstimate(
            quantiles=quantiles,
            wait=self.start - self.at,
            made=self.at,
            waited=self.at - self.submitted,
            devices=self.devices,
        )


@dataclass(slots=True)
class Seen:
    """Estimates and their outcomes.

    Attributes:
        congestions: for each estimate the virtual cluster, and how often by then no job had
            waited in it.
        untold: jobs without an estimate.
        wide: estimates with a wide range, which are shown with its cause.
    """

    ours: list[Quantiles] = field(default_factory=list)
    raw: list[Quantiles] = field(default_factory=list)
    empirical: list[Quantiles] = field(default_factory=list)
    truths: list[float] = field(default_factory=list)
    congestions: list[tuple[int, int]] = field(default_factory=list)
    untold: int = 0
    wide: int = 0

    def add(self, other: "Seen") -> None:
        """Add other results, as separate congestions."""
        before = 1 + max((vc for vc, _ in self.congestions), default=0)
        self.congestions += [(before + vc, number) for vc, number in other.congestions]
        self.untold += other.untold
        self.wide += other.wide
        for name in ("ours", "raw", "empirical", "truths"):
            getattr(self, name).extend(getattr(other, name))


def collect(case: Case, jobs: Sequence[TraceJob], *, futures: int) -> list[Asked]:
    """Replay one case and estimate all jobs that have to wait, in the order of time."""
    replay = _Replay(case, jobs)
    drawn: list[tuple[int, float, Quantiles | None]] = []
    fresh: list[int] = []
    for job in replay.newly_waiting():
        fresh.append(job)
        if len(fresh) < max(TOGETHER, len(replay.world.waiting) // CROWD_PART):
            continue
        for one, quantiles in _estimate(replay, fresh, futures).items():
            drawn.append((one, replay.world.now, quantiles))
        fresh = []
    starts, queued = replay.world.record.starts, replay.queued
    teaching = jobs[int(len(jobs) * TEACHES)].submitted
    return [
        Asked(
            job=job,
            vc=queued[job - 1].vc,
            submitted=queued[job - 1].submitted,
            at=at,
            quantiles=quantiles,
            devices=queued[job - 1].demand.devices,
            start=starts[job],
            counts=at >= teaching,
        )
        for job, at, quantiles in drawn
        if job in starts
    ]


def judge(asked: Sequence[Asked]) -> Seen:
    """Calibrate each estimate by data known at its time, and pair it with the outcome."""
    seen = Seen()
    lessons: dict[int, Calibration] = defaultdict(Calibration)
    waits: dict[int, list[float]] = defaultdict(list)
    waiting: dict[int, int] = defaultdict(int)
    lulls: dict[int, int] = defaultdict(int)
    estimated: set[int] = set()
    for at, is_new, one in sorted(_events(asked), key=itemgetter(0, 1)):
        mine, vc, quantiles = lessons[one.vc], one.vc, one.quantiles
        if not is_new:
            waiting[vc] -= 1
            lulls[vc] += not waiting[vc]
            insort(waits[vc], one.start - one.submitted)
            if one.job in estimated:
                mine.close(one.job, now=at)
            continue
        waiting[vc] += 1
        counts = one.counts and len(waits[vc]) >= LEAST_WAITS
        is_simulated = quantiles is not None
        if quantiles is None:
            quantiles = mine.from_waits(now=at, waited=at - one.submitted, devices=one.devices)
        estimated.add(one.job)
        told = one.told(quantiles)
        if quantiles is None:
            seen.untold += counts
        elif counts:
            shown = _shown(mine, told, quantiles, is_simulated=is_simulated)
            seen.wide += not shown.is_reliable
            seen.ours.append(shown.quantiles)
            seen.raw.append(quantiles)
            seen.empirical.append(_usual(waits[vc], told.waited))
            seen.truths.append(told.wait)
            seen.congestions.append((vc, lulls[vc]))
        mine.keep(one.job, told)
    return seen


def _shown(
    lessons: Calibration, told: PastEstimate, quantiles: Quantiles, *, is_simulated: bool
) -> Forecast:
    """Return the estimate as the portal shows it."""
    if is_simulated:
        return lessons.forecast(quantiles, now=told.made, waited=told.waited, devices=told.devices)
    mended = lessons.mend(quantiles, now=told.made, waited=told.waited, devices=told.devices)
    return Forecast(quantiles=mended, basis=Basis.WAITS)


def _events(asked: Sequence[Asked]) -> Iterator[tuple[float, bool, Asked]]:
    """Return the times of the estimates, and the starts of their jobs."""
    for one in asked:
        yield one.at, True, one
        yield one.start, False, one


def _usual(waits: list[float], waited: float) -> Quantiles:
    """Return the remaining waits of jobs that waited as long; of all jobs if these are few."""
    rest = waits[bisect_right(waits, waited) :]
    if len(rest) < LEAST_WAITS:
        rest, waited = waits, 0.0
    p10, p50, p90 = (float(np.quantile(rest, level)) - waited for level in (0.1, 0.5, 0.9))
    return p10, p50, p90


class _Replay:
    """The replayed trace; ``newly_waiting`` stops when an estimate is due."""

    def __init__(self, case: Case, jobs: Sequence[TraceJob]) -> None:
        self.queued = queued_jobs(case, jobs)
        self.lineages = [
            lineage_of(
                vc=job.vc,
                owner=job.owner,
                application=told.application or None,
                name="job",
                devices=told.devices,
            )
            for job, told in zip(self.queued, jobs, strict=True)
        ]
        self.seconds = [float(job.duration or 0.0) for job in jobs]
        self.world = SimulatedCluster(
            empty_cluster(case, jobs),
            lambda job_id: self.seconds[job_id - 1],
            settings=SimulationSettings(horizon=1e12),
            arrivals=[
                (job, JobFacts(terms=Terms(tenant=job.tenant), asked=job.demand))
                for job in self.queued
            ],
        )

    def newly_waiting(self) -> Iterator[int]:
        """Yield jobs that have just arrived and did not start at once, after that round."""
        world, come = self.world, 0
        while (due := world.next_time()) is not None:
            world.advance(due)
            world.decide()
            before = come
            while come < len(self.queued) and self.queued[come].submitted <= world.now:
                come += 1
            for job in self.queued[before:come]:
                if job.id in world.waiting:
                    yield job.id

    def runs(self) -> Iterator[RunTime]:
        """Observed run times up to now."""
        for job_id in self.world.record.ends:
            yield RunTime(lineage=self.lineages[job_id - 1], seconds=self.seconds[job_id - 1])
        for job_id in self.world.holding:
            ran = self.world.ran(job_id)
            yield RunTime(lineage=self.lineages[job_id - 1], seconds=ran, ended=False)


def _estimate(replay: _Replay, jobs: Sequence[int], futures: int) -> dict[int, Quantiles | None]:
    world = replay.world
    waiting = [job for job in jobs if job in world.waiting]
    live = (*world.waiting, *world.holding)
    pasts = {one: Past(lineage=replay.lineages[one - 1], elapsed=world.ran(one)) for one in live}
    found = try_futures(
        world.snapshot(),
        RunTimes(replay.runs()),
        pasts,
        futures=futures,
        seed=jobs[-1],
        settings=SETTINGS,
        wanted=waiting,
    )
    return {job: _within_horizon(found.quantiles(job)) for job in waiting}


def _within_horizon(raw: Quantiles | None) -> Quantiles | None:
    """The quantiles to be shown, by the rule of ``scheduling.estimates.services.estimates``."""
    if raw is None or isinf(raw[1]):
        return None
    p10, p50, p90 = (min(seconds, SETTINGS.horizon) for seconds in raw)
    return p10, p50, p90


def _figures(seen: Seen) -> dict[str, float]:
    truths = seen.truths
    ours = float(np.mean([pinball(q, t) for q, t in zip(seen.ours, truths, strict=True)]))
    raw = float(np.mean([pinball(q, t) for q, t in zip(seen.raw, truths, strict=True)]))
    other = float(np.mean([pinball(q, t) for q, t in zip(seen.empirical, truths, strict=True)]))
    inside = [q[0] <= t <= q[2] for q, t in zip(seen.ours, truths, strict=True)]
    plain = [q[0] <= t <= q[2] for q, t in zip(seen.raw, truths, strict=True)]
    crowds: dict[tuple[int, int], list[bool]] = defaultdict(list)
    for crowd, is_inside in zip(seen.congestions, inside, strict=True):
        crowds[crowd].append(is_inside)
    return {
        "jobs": len(truths),
        "told": len(truths) / (len(truths) + seen.untold),
        "covered": sum(inside) / (len(truths) + seen.untold),
        "wide": seen.wide / len(truths),
        "congestions": len(crowds),
        "covered_by_congestion": float(np.mean([np.mean(one) for one in crowds.values()])),
        "covered_before_mending": float(np.mean(plain)),
        "pinball_s": ours,
        "pinball_before_mending_s": raw,
        "pinball_empirical_s": other,
        "ratio": ours / other,
        "median_wait_s": float(np.median(truths)),
    }


def main() -> None:
    """Print one entry for each case and measure, and the same for all of them together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--futures", type=int, default=5)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    entries: list[Entry] = []
    every = Seen()
    for case in CASES:
        if case.name not in options.case if options.case else case.held_out != options.held_out:
            continue
        jobs = jobs_of(case, options.jobs)
        if not jobs:
            continue
        began = time.process_time()
        seen = judge(collect(case, jobs, futures=options.futures))
        if not seen.truths:
            print(f"{case.name}: no job had to wait and was told", file=sys.stderr)
            continue
        figures = _figures(seen)
        if options.details:
            told = {name: round(value, 3) for name, value in figures.items()}
            print(case.name, told, round(time.process_time() - began, 1), file=sys.stderr)
        entries += _entries(case.name, figures)
        every.add(seen)
    if every.truths:
        entries += _entries("held-out" if options.held_out else "all", _figures(every))
    print(json.dumps(entries, indent=2))


def _entries(name: str, figures: Mapping[str, float]) -> list[Entry]:
    context = f"{figures['jobs']:.0f} jobs that had to wait"
    return [
        {
            "name": f"estimates.{name}.covered_by_80_percent",
            "value": round(figures["covered"], 3),
            "unit": "share",
            "better": "higher",
            "context": f"{context}; 0.70 to 0.90 is right; a job without an estimate is a miss",
        },
        {
            "name": f"estimates.{name}.wide",
            "value": round(figures["wide"], 3),
            "unit": "share",
            "better": "lower",
            "context": "ranges that are shown with the cause of their width",
        },
        {
            "name": f"estimates.{name}.covered_by_congestion",
            "value": round(figures["covered_by_congestion"], 3),
            "unit": "share",
            "better": "higher",
            "context": f"each of {figures['congestions']:.0f} congestions counts once",
        },
        {
            "name": f"estimates.{name}.told",
            "value": round(figures["told"], 3),
            "unit": "share",
            "better": "higher",
            "context": "the others have neither a start in most futures nor enough past waits",
        },
        {
            "name": f"estimates.{name}.pinball_ratio",
            "value": round(figures["ratio"], 3),
            "unit": "ratio",
            "better": "lower",
            "context": f"{context}; against quantiles of past waits",
        },
    ]


if __name__ == "__main__":
    main()
