"""Cost of guests in a round: 2,000 devices in use, all hosts, and 500 waiting guests.

Run by hand: ``python -m benchmarks.guests``; prints JSON entries. Process time of ``decide`` on a
new engine with guests, without the time of the same round without them; median of several runs.
"""

import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from benchmarks.cells import SHARES, cluster
from benchmarks.entries import entry
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.round.decide import decide
from scheduling.core.round.engine_setup import engine_for
from scheduling.core.round_result import RoundResult
from scheduling.core.sharing.hosts import Consent, GuestNeed, Host, SharingMode
from scheduling.core.values import ClusterSnapshot, HoldingJob, NodeFacts, QueuedJob, VcFacts

DEVICES, GUESTS, RUNS = 2_000, 500, 9
GIB: Final = 1 << 30
ONE: Final = Demand(members=(MemberDemand(role="worker", count=1, devices=1),))


def main() -> None:
    """Print an entry for each number of different requests, with and without free seats."""
    for shapes in (5, 50):
        for seats in (1, 0):
            snapshot = shared(shapes, seats)
            seconds = statistics.median(extra_seconds(snapshot) for _ in range(RUNS))
            guests = len(decide(snapshot, engine=engine_for(snapshot)).guests)
            context = f"{DEVICES} hosts, {GUESTS} waiting, {guests} guests start, process time"
            name = f"round_guests_{shapes}_requests_{'free' if seats else 'full'}"
            print(json.dumps(entry(name, 1000 * seconds, "ms", "lower", context)), flush=True)


def extra_seconds(snapshot: ClusterSnapshot) -> float:
    """Return the seconds that the guests add to one decision."""
    without = replace(snapshot, hosts=(), guest_needs={})
    return _timed(snapshot)[0] - _timed(without)[0]


def _timed(snapshot: ClusterSnapshot) -> tuple[float, RoundResult]:
    engine = engine_for(snapshot)
    began = time.process_time()
    result = decide(snapshot, engine=engine, trials=0, explain=())
    return time.process_time() - began, result


def shared(shapes: int, seats: int) -> ClusterSnapshot:
    """Return a cluster without idle devices, with ``shapes`` different requests of guests."""
    chance = random.Random(shapes)
    empty = _cluster()
    asked = [
        _job(number, vc, JobClass.GUARANTEED)
        for number, vc in enumerate(chance.choices(empty.vcs, k=2 * DEVICES), start=1)
    ]
    holding = _started(replace(empty, queued=tuple(asked)))
    waiting = [
        _job(10 * DEVICES + number, chance.choice(empty.vcs), JobClass.OPPORTUNISTIC)
        for number in range(GUESTS)
    ]
    needs = [(4 * GIB + 64 * number, 8 * GIB + 64 * number) for number in range(shapes)]
    return replace(
        empty,
        round_number=2,
        queued=tuple(waiting),
        holding=holding,
        hosts=tuple(_host(job, seats, chance) for job in holding),
        guest_needs={
            job.id: GuestNeed(floor=floor, wants=wants)
            for job in waiting
            for floor, wants in [chance.choice(needs)]
        },
    )


def _cluster() -> ClusterSnapshot:
    return ClusterSnapshot(
        now=1e6,
        round_number=1,
        round_seconds=10.0,
        seed=1,
        topology_version=1,
        spec=cluster(DEVICES),
        vcs=tuple(
            VcFacts(id=number, name=name, tenant=number, policy="fifo")
            for number, name in enumerate(SHARES, start=1)
        ),
        nodes=tuple(
            NodeFacts(
                name=f"n{number}",
                placeable=True,
                healthy=True,
                has_docker=True,
                cpus_per_device=8.0,
                memory_per_device=64 * GIB,
            )
            for number in range(DEVICES // 8)
        ),
        queued=(),
        holding=(),
    )


def _job(number: int, vc: VcFacts, job_class: JobClass) -> QueuedJob:
    guaranteed = job_class is JobClass.GUARANTEED
    return QueuedJob(
        id=number,
        vc=vc.id,
        tenant=vc.tenant,
        owner=1,
        owner_name="alice",
        priority=10 if guaranteed else -1,
        job_class=job_class,
        demand=ONE,
        submitted=float(number),
    )


def _started(snapshot: ClusterSnapshot) -> tuple[HoldingJob, ...]:
    queued = {job.id: job for job in snapshot.queued}
    return tuple(
        HoldingJob(
            id=job.id,
            vc=job.vc,
            tenant=job.tenant,
            owner=job.owner,
            priority=job.priority,
            job_class=job.job_class,
            demand=job.demand,
            submitted=job.submitted,
            since=snapshot.now,
            leaving=False,
            members=tuple(member.leaves for member in start.members),
        )
        for start in decide(snapshot, trials=0, explain=()).starts
        for job in [queued[start.job_id]]
    )


def _host(job: HoldingJob, seats: int, chance: random.Random) -> Host:
    address = job.members[0][0].address
    path: Sequence[str] = address.split("/")
    node = next(part for part in path if part.startswith("n"))
    return Host(
        address=address,
        node=node,
        index=int(job.id % 8),
        holder=job.id,
        type="gpu",
        mode=SharingMode.COOPERATIVE,
        isolation="container",
        tenant=job.tenant,
        consent=chance.choice((Consent.ANY, Consent.ANY, Consent.SAME_TENANT)),
        slots=() if seats else (1,),
        most_guests=1,
        memory_free=chance.randrange(2, 40) * GIB,
        steady_seconds=600.0,
        steps=1_000,
        account_empty=chance.random() < 0.05,
        pace=0.8 * chance.random(),
        seconds_left=86_400.0 * chance.random(),
    )


if __name__ == "__main__":
    main()
