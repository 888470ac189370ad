"""Start estimates against what happened: jobs of Philly replayed under live policies.

The trace is replayed by the rounds themselves with its true run times. When a job comes and has to
wait, its start is estimated from what could be known at that moment: run times of jobs that had
ended or were running, and errors of earlier estimates. Nothing of the future is used, neither run
times nor arrivals. Beside it stand the quantiles of the waits that were over by then in the same
virtual cluster. The first part of each trace only teaches.

    python -m benchmarks.estimates [--jobs N] [--futures N] [--case NAME ...] [--details]
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.forecast.calibration import Told, learn, pinball
from scheduling.core.forecast.durations import Lineage, Run, RunTimes, lineage_of
from scheduling.core.forecast.forward import Course, World
from scheduling.core.forecast.futures import Past, try_futures
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.planning import Terms
from scheduling.core.simulator.readers import read_trace
from scheduling.core.simulator.traces import TraceJob
from scheduling.core.values import ClusterSnapshot, Known, NodeFacts, QueuedJob, VcFacts

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TESSERA_SHARED", ROOT.parent / "shared")) / "data" / "philly"
NODE_DEVICES: Final = 8
LOAD: Final = 0.7
"""Devices are so many that the jobs would keep this part of them busy."""

TEACHES: Final = 0.4
COURSE: Final = Course(horizon=40 * 86400.0, coarse=0.02, most_waiting=300)

EVERY: Final = 2
"""Of so many jobs that have to wait one is estimated."""

LONGEST: Final = COURSE.horizon
MOST_TOLD: Final = 200

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One virtual cluster of the trace under one policy."""

    name: str
    vc: str
    policy: str
    args: Mapping[str, Any] = field(default_factory=dict)
    first: int = 0


CASES: Final = (
    Case(name="fifo", vc="ee9e8c", policy="fifo"),
    Case(name="fifo-strict", vc="103959", policy="fifo", args={"backfill": False}),
    Case(name="fifo-2", vc="0e4a51", policy="fifo"),
    Case(name="tiresias", vc="ed69ec", policy="tiresias"),
    Case(name="drf", vc="b436b2", policy="drf"),
)


@dataclass(slots=True)
class Seen:
    """What was estimated and what came of it."""

    ours: list[tuple[float, float, float]] = field(default_factory=list)
    raw: list[tuple[float, float, float]] = field(default_factory=list)
    empirical: list[tuple[float, float, float]] = field(default_factory=list)
    truths: list[float] = field(default_factory=list)
    unknown: int = 0


def measure(case: Case, *, jobs: int, futures: int) -> Seen:
    """Replay one case and estimate the starts in the part that does not teach."""
    replay = _Replay(case, _jobs_of(case, jobs))
    seen = Seen()
    told: list[_Estimate] = []
    for number, job in enumerate(replay.newly_waiting()):
        if number % EVERY:
            continue
        made = _estimate(replay, job, told, futures)
        if made is None:
            seen.unknown += 1
        else:
            told.append(made)
    for estimate in told:
        start = replay.world.starts.get(estimate.job)
        if not estimate.counts or start is None:
            continue
        seen.truths.append(start - estimate.at)
        seen.ours.append(estimate.mended)
        seen.raw.append(estimate.raw)
        seen.empirical.append(estimate.empirical)
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    job: int
    at: float
    raw: tuple[float, float, float]
    mended: tuple[float, float, float]
    empirical: tuple[float, float, float]
    counts: bool


class _Replay:
    """The true world, walked through; ``newly_waiting`` stops where an estimate is due."""

    def __init__(self, case: Case, jobs: list[TraceJob]) -> None:
        self.jobs = jobs
        self.lineages = [_lineage(job) for job in jobs]
        self.teaching = jobs[int(len(jobs) * TEACHES)].submitted
        queued = [_queued(number, job) for number, job in enumerate(jobs, start=1)]
        self.submitted = {job.id: job.submitted for job in queued}
        arrivals = [(job, Known(terms=Terms(tenant=1), asked=job.demand)) for job in queued]
        self.world = World(
            _empty(case, jobs),
            lambda job_id: float(jobs[job_id - 1].duration or 0.0),
            course=Course(horizon=1e12),
            arrivals=arrivals,
        )
        self.waited: set[int] = set()

    def newly_waiting(self) -> Iterator[int]:
        """Jobs that have just come and did not start at once, at the moment after that round."""
        world, fresh = self.world, set(self.submitted)
        while (due := world.next_time()) is not None:
            world.advance(due)
            world.decide()
            come = [job for job in fresh if job in world.waiting]
            fresh -= {job for job in fresh if self.submitted[job] <= world.now}
            for job in come:
                self.waited.add(job)
                yield job

    def runs(self) -> Iterator[Run]:
        """What had been seen of run times by now."""
        world = self.world
        for job_id, ended in world.ended.items():
            del ended
            job = self.jobs[job_id - 1]
            yield Run(lineage=self.lineages[job_id - 1], seconds=float(job.duration or 0.0))
        for job_id in world.holding:
            ran = self.elapsed(job_id)
            yield Run(lineage=self.lineages[job_id - 1], seconds=ran, ended=False)

    def elapsed(self, job_id: int) -> float:
        """Seconds that a live job has run so far."""
        return self.world.ran(job_id)

    def past_waits(self) -> list[float]:
        """Waits that are over, of jobs that had to wait."""
        starts = self.world.starts
        return [starts[job] - self.submitted[job] for job in self.waited if job in starts]


def _estimate(replay: _Replay, job: int, told: list[_Estimate], futures: int) -> _Estimate | None:
    world = replay.world
    live = (*world.waiting, *world.holding)
    found = try_futures(
        world.snapshot(),
        RunTimes(replay.runs()),
        {one: Past(lineage=replay.lineages[one - 1], elapsed=replay.elapsed(one)) for one in live},
        futures=futures,
        seed=job,
        course=COURSE,
        wanted={job},
    )
    raw = found.quantiles(job)
    waits = replay.past_waits()
    if raw is None or len(waits) < 5:
        return None
    raw = (min(raw[0], LONGEST), min(raw[1], LONGEST), min(raw[2], LONGEST))
    correction = learn(
        [
            Told(
                quantiles=one.raw,
                wait=world.starts.get(one.job, world.now) - one.at,
                started=one.job in world.starts,
            )
            for one in told[-MOST_TOLD:]
        ]
    )
    p10, p50, p90 = (float(np.quantile(waits, level)) for level in (0.1, 0.5, 0.9))
    return _Estimate(
        job=job,
        at=world.now,
        raw=raw,
        mended=correction.mend(raw),
        empirical=(p10, p50, p90),
        counts=world.now >= replay.teaching,
    )


def _jobs_of(case: Case, most: int) -> list[TraceJob]:
    text = (SHARED / "philly.csv").read_text()
    trace = read_trace(text, "philly.csv", "philly")
    mine = sorted(
        (job for job in trace.jobs if job.tenant == case.vc and (job.duration or 0.0) >= 10.0),
        key=lambda job: job.submitted,
    )
    return mine[case.first : case.first + most]


def _lineage(job: TraceJob) -> Lineage:
    return lineage_of(vc=1, owner=1, application=None, name="job", devices=job.devices)


def _queued(number: int, job: TraceJob) -> QueuedJob:
    count, devices = 1, job.devices
    if devices > NODE_DEVICES:
        count, devices = -(-devices // NODE_DEVICES), NODE_DEVICES
    member = MemberDemand(role="worker", count=count, devices=devices)
    return QueuedJob(
        id=number,
        vc=1,
        tenant=1,
        owner=1,
        owner_name="alice",
        priority=10,
        job_class=JobClass.GUARANTEED,
        demand=Demand(members=(member,)),
        submitted=job.submitted,
    )


def _empty(case: Case, jobs: list[TraceJob]) -> ClusterSnapshot:
    """A cluster that the jobs keep busy to ``LOAD``, and that holds the largest of them."""
    span = jobs[-1].submitted - jobs[0].submitted
    work = sum(job.devices * (job.duration or 0.0) for job in jobs)
    largest = max(-(-job.devices // NODE_DEVICES) for job in jobs)
    nodes = max(largest, round(work / span / LOAD / NODE_DEVICES), 1)
    names = [f"node-{number}" for number in range(nodes)]
    spec = ClusterSpec(
        cell_types={"node": CellType(child="gpu", count=NODE_DEVICES, node_level=True)},
        physical=tuple(PhysicalCell(type="node", address=name) for name in names),
        virtual_clusters={"vc": VcSpec(quotas=(Quota(chain="node", level="node", count=nodes),))},
    )
    vc = VcFacts(id=1, name="vc", tenant=1, policy=case.policy, policy_args=case.args)
    facts = [
        NodeFacts(
            name=name,
            placeable=True,
            healthy=True,
            has_docker=True,
            cpus_per_device=4.0,
            memory_per_device=8 * 10**9,
        )
        for name in names
    ]
    return ClusterSnapshot(
        now=jobs[0].submitted - 1.0,
        round_number=1,
        round_seconds=60.0,
        seed=1,
        topology_version=1,
        spec=spec,
        vcs=(vc,),
        nodes=tuple(facts),
        queued=(),
        holding=(),
    )


def _figures(seen: Seen) -> dict[str, float]:
    truths = seen.truths
    ours = float(np.mean([pinball(q, t) for q, t in zip(seen.ours, truths, strict=True)]))
    raw = float(np.mean([pinball(q, t) for q, t in zip(seen.raw, truths, strict=True)]))
    other = float(np.mean([pinball(q, t) for q, t in zip(seen.empirical, truths, strict=True)]))
    inside = [q[0] <= t <= q[2] for q, t in zip(seen.ours, truths, strict=True)]
    plain = [q[0] <= t <= q[2] for q, t in zip(seen.raw, truths, strict=True)]
    return {
        "jobs": len(truths),
        "covered": float(np.mean(inside)),
        "covered_before_mending": float(np.mean(plain)),
        "pinball_s": ours,
        "pinball_before_mending_s": raw,
        "pinball_empirical_s": other,
        "ratio": ours / other,
        "unknown": seen.unknown,
        "median_wait_s": float(np.median(truths)),
    }


def main() -> None:
    """Print one entry for each case and measure, and the same for all of them together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=700)
    parser.add_argument("--futures", type=int, default=20)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    if not SHARED.is_dir():
        print("[]")
        return
    entries: list[Entry] = []
    every = Seen()
    for case in CASES:
        if options.case and case.name not in options.case:
            continue
        began = time.process_time()
        seen = measure(case, jobs=options.jobs, futures=options.futures)
        if not seen.truths:
            print(f"{case.name}: no job had to wait", file=sys.stderr)
            continue
        figures = _figures(seen)
        if options.details:
            told = {name: round(value, 3) for name, value in figures.items()}
            print(case.name, told, round(time.process_time() - began, 1), file=sys.stderr)
        entries += _entries(case.name, figures)
        for name in ("ours", "raw", "empirical", "truths"):
            getattr(every, name).extend(getattr(seen, name))
    if every.truths:
        entries += _entries("all", _figures(every))
    print(json.dumps(entries, indent=2))


def _entries(name: str, figures: Mapping[str, float]) -> list[Entry]:
    context = f"{figures['jobs']:.0f} jobs of Philly that had to wait"
    return [
        {
            "name": f"estimates.{name}.covered_by_80_percent",
            "value": round(figures["covered"], 3),
            "unit": "share",
            "better": "higher",
            "context": f"{context}; 0.70 to 0.90 is right",
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
