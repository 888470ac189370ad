"""Speed of the simulation engine: whole traces, and processor time of an event by live jobs.

Run by hand: ``python -m benchmarks.simulation [POLICY]``; prints JSON entries, one a line. Process
time. Devices are in racks of nodes of eight devices (pairs, sockets), all guaranteed to virtual
clusters in equal parts; jobs come at random from a seed and use 90 % of the devices.
"""

import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cells import TYPES
from benchmarks.entries import entry
from scheduling.core.cells import ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.policy_interface import Terms
from scheduling.core.simulation import SimulatedCluster
from scheduling.core.values import ClusterSnapshot, JobFacts, NodeFacts, QueuedJob, VcFacts

DEVICES = (1, 1, 1, 2, 4, 8)
INSTANCES = (1, 1, 1, 2)
LOAD = 0.9
EVENTS = 300
MEAN_DEVICES = sum(DEVICES) / len(DEVICES) * sum(INSTANCES) / len(INSTANCES)
WEEK = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A cluster and its jobs.

    Attributes:
        nodes: nodes of eight devices.
        clusters: virtual clusters; they divide the nodes evenly.
        seconds: mean run time of a job.
    """

    nodes: int
    clusters: int
    jobs: int
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs per second that use ``LOAD`` of the devices."""
        return LOAD * self.nodes * 8 / (MEAN_DEVICES * self.seconds)


WEEKLY = Size(
    nodes=8, clusters=4, jobs=1_000, seconds=LOAD * 64 * WEEK / (1_000 * MEAN_DEVICES)
)  # fmt: skip
LARGE = Size(nodes=250, clusters=10, jobs=10_000, seconds=7200.0)
LIVE = {
    100: Size(nodes=40, clusters=10, jobs=2 * EVENTS, seconds=7200.0),
    600: Size(nodes=250, clusters=10, jobs=2 * EVENTS, seconds=7200.0),
    3_000: Size(nodes=250, clusters=10, jobs=2 * EVENTS, seconds=7200.0),
}


def measure(policy: str = "fifo") -> Iterator[dict[str, Any]]:
    """Yield all entries, as in ``results/latest.json``, as soon as they are known."""
    for name, size in (("week_64_devices", WEEKLY), ("10k_jobs_2k_devices", LARGE)):
        seconds, most = trace_times(cluster_of(size, policy))
        events = len(seconds)
        what = f"{size.jobs} jobs on {size.nodes * 8} devices at {LOAD:.0%} load, {policy}"
        context = f"{what}; {events} events, at most {most} live jobs"
        yield entry(f"simulation_{name}", sum(seconds), "s", "lower", context)
        mean = sum(seconds) / events * 1e3
        yield entry(f"simulation_event_{name}", mean, "ms", "lower", f"mean of {context}")
        second, third = (seconds[events * n // 4 : events * (n + 1) // 4] for n in (1, 2))
        ratio = sum(third) / sum(second)
        what = f"third quarter of the events relative to the second; {what}"
        yield entry(f"simulation_growth_{name}", ratio, "ratio", "lower", what)
    for live, size in LIVE.items():
        world = cluster_of(size, policy, first=live)
        world.decide()
        begun, before = time.process_time(), world.record.rounds
        while world.record.rounds < before + EVENTS and step(world):
            pass
        seconds = time.process_time() - begun
        context = (
            f"{len(world.holding)} running, {len(world.waiting)} waiting at the end, {policy}"
        )
        value = seconds / (world.record.rounds - before) * 1e3
        yield entry(f"simulation_event_{live}_live", value, "ms", "lower", context)


def trace_times(world: SimulatedCluster) -> tuple[list[float], int]:
    """Return the processor time of each event of a whole simulation, and its most live jobs."""
    seconds, most, begun = [], 0, time.process_time()
    world.decide()
    while step(world):
        most = max(most, len(world.holding) + len(world.waiting))
        seconds.append((ended := time.process_time()) - begun)
        begun = ended
    return seconds, most


def step(world: SimulatedCluster) -> bool:
    """Simulate one event, if there is one."""
    due = world.next_time()
    if due is None:
        return False
    world.advance(due)
    world.decide()
    return True


def cluster_of(size: Size, policy: str, *, first: int = 0, seed: int = 1) -> SimulatedCluster:
    """Build a cluster whose first jobs wait at its start, and whose other jobs come later."""
    chance = random.Random(seed)
    queued, arrivals, work, known = [], [], {}, {}
    at = 0.0
    for number in range(1, first + size.jobs + 1):
        at += chance.expovariate(size.rate) if number > first else 0.0
        job = random_job(number, at, size, chance)
        # The mean of a lognormal distribution is above its median.
        seconds = size.seconds * math.exp(chance.gauss(0.0, 1.0) - 0.5)
        work[number] = seconds
        known[number] = JobFacts(terms=Terms(tenant=job.tenant, estimate=seconds))
        if number > first:
            arrivals.append((job, known[number]))
        else:
            queued.append(job)
    snapshot = snapshot_of(size, policy, queued)
    facts = {job.id: known[job.id] for job in queued}
    return SimulatedCluster(replace(snapshot, known=facts), work.__getitem__, arrivals=arrivals)


def random_job(number: int, at: float, size: Size, chance: random.Random) -> QueuedJob:
    """Draw a job; one in five is opportunistic."""
    vc = chance.randint(1, size.clusters)
    borrows = chance.random() < 0.2
    member = MemberDemand(
        role="worker", count=chance.choice(INSTANCES), devices=chance.choice(DEVICES)
    )
    return QueuedJob(
        id=number,
        vc=vc,
        tenant=vc,
        owner=vc * 100 + chance.randint(1, 5),
        owner_name="",
        priority=-1 if borrows else chance.choice((10, 100)),
        job_class=JobClass.OPPORTUNISTIC if borrows else JobClass.GUARANTEED,
        demand=Demand(members=(member,)),
        submitted=at,
    )


def snapshot_of(size: Size, policy: str, queued: Sequence[QueuedJob]) -> ClusterSnapshot:
    """Build the snapshot of an empty cluster at time 0."""
    rack = math.gcd(size.nodes, 10) if size.nodes >= 10 else size.nodes
    names = [f"n{number}" for number in range(size.nodes)]
    share = Quota(chain="rack", level="node", count=size.nodes // size.clusters)
    return ClusterSnapshot(
        now=0.0,
        round_number=1,
        round_seconds=10.0,
        seed=1,
        topology_version=1,
        spec=ClusterSpec(
            cell_types={**TYPES, "rack": replace(TYPES["rack"], count=rack)},
            physical=tuple(
                PhysicalCell(
                    type="rack",
                    children=tuple(PhysicalCell(address=name) for name in names[at : at + rack]),
                )
                for at in range(0, size.nodes, rack)
            ),
            virtual_clusters={
                f"vc-{number}": VcSpec(quotas=(share,)) for number in range(1, size.clusters + 1)
            },
        ),
        vcs=tuple(
            VcFacts(id=number, name=f"vc-{number}", tenant=number, policy=policy)
            for number in range(1, size.clusters + 1)
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
        queued=tuple(queued),
        holding=(),
    )


def main() -> None:
    """Print the entries as they come."""
    for one in measure(*sys.argv[1:2]):
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
