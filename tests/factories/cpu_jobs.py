"""Jobs without devices and CPU pools of a small cluster, as values for the pure round."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scheduling.core.cpu_pools import CpuPool, PoolLease
from scheduling.core.jobspec import Demand, MemberDemand
from scheduling.core.round.cpu_jobs import AGED_SECONDS, amounts_of
from scheduling.core.values import ClusterSnapshot, HeldCpuJob, HoldingJob, QueuedJob, VcFacts
from tests.factories.rounds import LANGUAGE, NODES, NOW, VISION, cluster_snapshot, queued_job

GIB = 1 << 30


def cpu_job(
    number: int,
    cpus: float = 1.0,
    count: int = 1,
    *,
    memory: int = GIB,
    vc: VcFacts = VISION,
    borrow: bool = False,
    **changes: Any,
) -> QueuedJob:
    role = MemberDemand(role="loader", count=count, devices=0, cpus=cpus, memory=memory)
    job = queued_job(number, vc=vc, borrow=borrow)
    return replace(
        job, **{"demand": Demand(members=(), companions=(role,)), "submitted": NOW, **changes}
    )


def pools(*cpus: float, memory: int = 64 * GIB) -> tuple[CpuPool, ...]:
    return tuple(
        CpuPool(node=node, cpus=number, memory=memory)
        for node, number in zip(NODES, cpus, strict=False)
        if number
    )


def snapshot_of(
    *waiting: QueuedJob, pooled: tuple[CpuPool, ...] = (), **changes: Any
) -> ClusterSnapshot:
    return cluster_snapshot(cpu_queued=waiting, cpu_pools=pooled or pools(8, 8, 8), **changes)


def held(job: QueuedJob, *nodes: str, leaving: bool = False, since: float = 0.0) -> HeldCpuJob:
    running = HoldingJob(
        id=job.id,
        vc=job.vc,
        tenant=job.tenant,
        owner=job.owner,
        priority=job.priority,
        job_class=job.job_class,
        demand=job.demand,
        submitted=job.submitted,
        since=since,
        leaving=leaving,
        members=((),) * len(nodes),
    )
    return HeldCpuJob(
        job=running,
        leases=tuple(
            PoolLease(node=node, cpus=amount.cpus, memory=amount.memory)
            for node, amount in zip(nodes, amounts_of(job.demand), strict=True)
        ),
    )


@st.composite
def cpu_work(draw: st.DrawFn) -> dict[str, Any]:
    pooled = pools(
        *(draw(st.sampled_from([0, 0.5, 2, 8, 16])) for _ in NODES),
        memory=draw(st.sampled_from([GIB, 16 * GIB])),
    )
    numbers = iter(range(1000, 1100))
    vcs = (VISION, LANGUAGE)

    def job() -> QueuedJob:
        return cpu_job(
            next(numbers),
            draw(st.sampled_from([0.1, 0.5, 1.0, 3.0, 8.0])),
            draw(st.integers(1, 3)),
            memory=draw(st.sampled_from([1 << 20, GIB, 5 * GIB])),
            vc=draw(st.sampled_from(vcs)),
            borrow=draw(st.booleans()),
            submitted=NOW - draw(st.sampled_from([0.0, 10.0, AGED_SECONDS])),
        )

    waiting = tuple(job() for _ in range(draw(st.integers(0, 6))))
    holding = tuple(
        held(
            one,
            *draw(st.lists(st.sampled_from(NODES), min_size=n, max_size=n)),
            leaving=draw(st.booleans()),
            since=draw(st.sampled_from([0.0, 5.0])),
        )
        for one in [job() for _ in range(draw(st.integers(0, 4)))]
        for n in [one.demand.instances]
    )
    return {"cpu_pools": pooled, "cpu_queued": waiting, "cpu_holding": holding}
