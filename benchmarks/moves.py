"""Guarded defragmentation: proposals judged by a second run of the engine.

Run by hand: ``python -m benchmarks.moves [--proposals N] [--seconds S]``; prints JSON entries, one
a line. In each case, a random cluster runs for some hours in the engine. The forecast then knows
the run times of past jobs only, and proposes moves. The engine runs twice more with the true run
times and with the jobs that are submitted later, with and without the moves: these runs measure
the gain and the cost of the proposal.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.entries import entry
from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.forecast.arrivals import PastSubmission, RecentSubmissions
from scheduling.core.forecast.durations import RunTime, RunTimes
from scheduling.core.forecast.futures import Past
from scheduling.core.forecast.move_candidates import MoveSettings
from scheduling.core.forecast.moves import Proposal, course, gain_and_cost, propose_moves
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.simulation import SimulatedCluster, SimulationSettings
from scheduling.core.values import (
    ClusterSnapshot,
    HoldingJob,
    JobFacts,
    NodeFacts,
    QueuedJob,
    VcFacts,
)

NODE_DEVICES: Final = 8
MEDIAN_SECONDS: Final = 3600.0
SPREAD_OF_APPLICATIONS: Final = 0.8
SPREAD_OF_RUNS: Final = 0.6
APPLICATIONS: Final = 6
PAST_RUNS: Final = 60
SIZES: Final = (1, 1, 2, 2, 3, 4, 4, 6, 8)
CHECKPOINT_SECONDS: Final = 600.0
LOAD: Final = 0.95
WARM_UP: Final = 8 * 3600.0
LATER: Final = 4 * 3600.0
FUTURES: Final = 40
ENGINE: Final = SimulationSettings(grace=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cluster at the time of the proposal.

    Attributes:
        snapshot: the present state.
        times: run times of past jobs, all that the forecast knows.
        pasts: elapsed run times of the live jobs.
        left: true remaining seconds by job, for the second run.
        later: jobs that are submitted after the proposal.
        recent: jobs that were submitted before it, which the forecast resamples.
    """

    snapshot: ClusterSnapshot
    times: RunTimes
    pasts: dict[int, Past]
    left: dict[int, float]
    later: tuple[QueuedJob, ...]
    recent: RecentSubmissions


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A proposal with its forecast and its measured gain and cost, in device-seconds."""

    seed: int
    proposal: Proposal
    gain: float
    cost: float

    @property
    def is_loss(self) -> bool:
        """Whether the moves cost more than they gained."""
        return self.cost > self.gain


def case(seed: int) -> Case:
    """Build a random case: a cluster with 3 to 6 nodes after ``WARM_UP`` seconds of jobs."""
    rng = np.random.default_rng([seed, 18])
    nodes = int(rng.integers(3, 7))
    medians = MEDIAN_SECONDS * np.exp(SPREAD_OF_APPLICATIONS * rng.standard_normal(APPLICATIONS))
    past = [
        RunTime(lineage=(f"app-{app}",), seconds=_run_seconds(rng, medians[app]))
        for app in range(APPLICATIONS)
        for _ in range(PAST_RUNS)
    ]
    mean_seconds = float(np.mean(medians)) * math.exp(SPREAD_OF_RUNS**2 / 2)
    gap = float(np.mean(SIZES)) * mean_seconds / (LOAD * nodes * NODE_DEVICES)
    jobs: list[QueuedJob] = []
    apps: dict[int, int] = {}
    work: dict[int, float] = {}
    at = 0.0
    while (at := at + float(rng.exponential(gap))) < WARM_UP + LATER:
        number = len(jobs) + 1
        apps[number] = int(rng.integers(APPLICATIONS))
        work[number] = _run_seconds(rng, medians[apps[number]])
        jobs.append(_job(number, int(rng.choice(SIZES)), at, borrows=rng.random() < 0.7))
    world = SimulatedCluster(
        _empty(nodes),
        work.__getitem__,
        settings=ENGINE,
        arrivals=[(job, JobFacts()) for job in jobs if job.submitted < WARM_UP],
    )
    world.decide()
    while (due := world.next_time()) is not None and due < WARM_UP:
        world.advance(due)
        world.decide()
    world.advance(WARM_UP)
    world.decide()
    live = world.snapshot()
    ids = [job.id for job in live.queued] + [job.id for job in live.holding]
    ran = {job_id: world.ran(job_id) for job_id in ids}
    later = tuple(job for job in jobs if job.submitted >= WARM_UP)
    return Case(
        snapshot=replace(
            live, holding=tuple(_with_checkpoint(job, live.now, rng) for job in live.holding)
        ),
        times=RunTimes(past),
        pasts={
            job_id: Past(lineage=(f"app-{apps[job_id]}",), elapsed=ran[job_id]) for job_id in ids
        },
        left={
            job_id: work[job_id] - ran.get(job_id, 0.0)
            for job_id in (*ids, *(job.id for job in later))
        },
        later=later,
        recent=RecentSubmissions(
            jobs=[
                PastSubmission(job=job, lineage=(f"app-{apps[job.id]}",))
                for job in jobs
                if job.submitted < WARM_UP
            ],
            seconds=WARM_UP,
            ahead=LATER,
        ),
    )


def judge(seed: int, *, futures: int = FUTURES) -> Iterator[Judged]:
    """Yield the proposals of one case, each with its measured gain and cost."""
    found = case(seed)
    settings = MoveSettings(simulation=ENGINE, futures=futures, seed=seed, recent=found.recent)
    proposals = propose_moves(found.snapshot, found.times, found.pasts, settings)
    if not proposals:
        return
    left = found.left.__getitem__
    stay = course(found.snapshot, left, (), settings, arrivals=found.later)
    for proposal in proposals:
        moved = course(found.snapshot, left, proposal.moves, settings, arrivals=found.later)
        gain, cost = gain_and_cost(
            found.snapshot, stay, moved, proposal.moves, arrivals=found.later
        )
        yield Judged(seed=seed, proposal=proposal, gain=gain, cost=cost)


def summary(judged: Sequence[Judged], cases: int) -> list[dict[str, object]]:
    """Return the entries of some judged proposals; there must be one or more."""
    losses = sum(one.is_loss for one in judged)
    gain, cost = sum(one.gain for one in judged), sum(one.cost for one in judged)
    context = f"{len(judged)} proposals in {cases} cases"
    hours = 3600.0
    return [
        entry("moves.losses", 100 * losses / len(judged), "%", "lower", context),
        entry("moves.gain", gain / len(judged) / hours, "device-h", "higher", context),
        entry("moves.cost", cost / len(judged) / hours, "device-h", "lower", context),
    ]


def _run_seconds(rng: np.random.Generator, median: float) -> float:
    return float(median * np.exp(SPREAD_OF_RUNS * rng.standard_normal()))


def _job(number: int, devices: int, submitted: float, *, borrows: bool) -> QueuedJob:
    vc = 1 + number % 2
    return QueuedJob(
        id=number,
        vc=vc,
        tenant=vc,
        owner=vc,
        owner_name="alice" if vc == 1 else "bob",
        priority=-1 if borrows else 10,
        job_class=JobClass.OPPORTUNISTIC if borrows else JobClass.GUARANTEED,
        demand=Demand(members=(MemberDemand(role="worker", count=1, devices=devices),)),
        submitted=submitted,
    )


def _with_checkpoint(job: HoldingJob, now: float, rng: np.random.Generator) -> HoldingJob:
    """Let four of five jobs store a checkpoint every ``CHECKPOINT_SECONDS``."""
    intervals = (now - job.since) // CHECKPOINT_SECONDS
    if rng.random() >= 0.8 or intervals < 1:
        return job
    return replace(job, saved=job.since + intervals * CHECKPOINT_SECONDS)


def _empty(nodes: int) -> ClusterSnapshot:
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    spec = ClusterSpec(
        cell_types={
            "a-pcie": CellType(child="a", count=2),
            "a-socket": CellType(child="a-pcie", count=2),
            "a-node": CellType(child="a-socket", count=2, node_level=True),
        },
        physical=tuple(PhysicalCell(type="a-node", address=name) for name in names),
        virtual_clusters={
            name: VcSpec(quotas=(Quota(chain="a-node", level="a-node", count=1),))
            for name in ("vision-a", "language-a")
        },
    )
    return ClusterSnapshot(
        now=0.0,
        round_number=1,
        round_seconds=10.0,
        seed=1,
        topology_version=1,
        spec=spec,
        vcs=(
            VcFacts(id=1, name="vision-a", tenant=1, policy="fifo"),
            VcFacts(id=2, name="language-a", tenant=2, policy="fifo"),
        ),
        nodes=tuple(
            NodeFacts(
                name=name,
                placeable=True,
                healthy=True,
                has_docker=False,
                cpus_per_device=4.0,
                memory_per_device=8 << 30,
            )
            for name in names
        ),
        queued=(),
        holding=(),
    )


def main() -> None:
    """Judge proposals of consecutive cases until enough are found, or the time ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proposals", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    judged: list[Judged] = []
    cases = 0
    while len(judged) < options.proposals and time.monotonic() < deadline:
        judged += judge(options.first + cases)
        cases += 1
    for found in summary(judged, cases) if judged else ():
        print(json.dumps(found))


if __name__ == "__main__":
    main()
