"""Jobs and snapshots of a small cluster, as values for the pure round."""

from dataclasses import replace
from typing import Any

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.policy_interface import Alloc, Part, Plan, Terms
from scheduling.core.round.decide import decide
from scheduling.core.round.gang_sizes import scale_of
from scheduling.core.values import (
    ClusterSnapshot,
    HoldingJob,
    JobFacts,
    NodeFacts,
    QueuedJob,
    VcFacts,
)
from tests.factories.policies import making

NOW = 10_000.0
TYPES = {
    "a-pcie": CellType(child="a", count=2),
    "a-socket": CellType(child="a-pcie", count=2),
    "a-node": CellType(child="a-socket", count=2, node_level=True),
}
NODES = ("node-1", "node-2", "node-3")
SPEC = ClusterSpec(
    cell_types=TYPES,
    physical=tuple(PhysicalCell(type="a-node", address=name) for name in NODES),
    virtual_clusters={
        "vision-a": VcSpec(quotas=(Quota(chain="a-node", level="a-node", count=1),)),
        "language-a": VcSpec(quotas=(Quota(chain="a-node", level="a-node", count=2),)),
    },
)
VISION = VcFacts(id=1, name="vision-a", tenant=1, policy="fifo")
LANGUAGE = VcFacts(id=2, name="language-a", tenant=2, policy="fifo")


def queued_job(
    job_id: int,
    devices: int = 1,
    count: int = 1,
    *,
    vc: VcFacts = VISION,
    priority: int = 10,
    borrow: bool = False,
    within: Within = Within.NODE,
    **facts: object,
) -> QueuedJob:
    member = MemberDemand(role="worker", count=count, devices=devices, within=within)
    return QueuedJob(
        id=job_id,
        vc=vc.id,
        tenant=vc.tenant,
        owner=1,
        owner_name="alice",
        priority=-1 if borrow else priority,
        job_class=JobClass.OPPORTUNISTIC if borrow else JobClass.GUARANTEED,
        demand=Demand(members=(member,)),
        submitted=float(job_id),
        **facts,  # type: ignore[arg-type]
    )


def cluster_snapshot(*queued: QueuedJob, **changes: object) -> ClusterSnapshot:
    base = ClusterSnapshot(
        now=NOW,
        round_number=1,
        round_seconds=10.0,
        seed=1,
        topology_version=1,
        spec=SPEC,
        vcs=(LANGUAGE, VISION),
        nodes=tuple(
            NodeFacts(
                name=name,
                placeable=True,
                healthy=True,
                has_docker=False,
                cpus_per_device=4.0,
                memory_per_device=8 << 30,
            )
            for name in NODES
        ),
        queued=queued,
        holding=(),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def jobs_started_by(
    start_of: ClusterSnapshot, *, leaving: frozenset[int] = frozenset()
) -> tuple[HoldingJob, ...]:
    """What ``start_of`` starts, as the jobs that hold devices in the next round."""
    queued = {job.id: job for job in start_of.queued}
    return tuple(
        HoldingJob(
            id=start.job_id,
            vc=queued[start.job_id].vc,
            tenant=queued[start.job_id].tenant,
            owner=queued[start.job_id].owner,
            priority=queued[start.job_id].priority,
            job_class=queued[start.job_id].job_class,
            demand=queued[start.job_id].demand,
            submitted=queued[start.job_id].submitted,
            since=NOW,
            leaving=start.job_id in leaving,
            members=tuple(member.leaves for member in start.members),
        )
        for start in decide(start_of).starts
    )


VISION_MINE = replace(VISION, policy="mine")


def decide_with_policy(
    answer: Any, *queued: Any, vcs: Any = (LANGUAGE, VISION_MINE), **changes: Any
) -> Any:
    return decide(cluster_snapshot(*queued, vcs=vcs, **changes), make=making(answer))


def plan_of_devices(**sizes: int) -> Plan:
    """A plan that means so many devices of type ``a`` for each job."""
    allocs = {int(k[1:]): Alloc(parts=(Part(n=n, type="a"),)) for k, n in sizes.items()}
    return Plan(allocs=allocs, order=tuple(allocs))


def elastic_facts(least: int, most: int, devices: int) -> JobFacts:
    demand = Demand(members=(MemberDemand(role="worker", count=1, devices=devices),))
    return JobFacts(terms=Terms(scale=scale_of(demand, least, most)))


def held_job(devices: int, *, ran: float, at: int = 1) -> Any:
    (one,) = jobs_started_by(cluster_snapshot(queued_job(at, devices)))
    return replace(one, since=NOW - ran)


ONE_DEVICE_JOB = QueuedJob(
    id=1,
    vc=1,
    tenant=1,
    owner=1,
    owner_name="alice",
    priority=10,
    job_class=JobClass.GUARANTEED,
    demand=Demand(members=(MemberDemand(role="worker", count=1, devices=1),)),
    submitted=0.0,
)
