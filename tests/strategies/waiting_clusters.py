"""Small clusters on which jobs wait for all kinds of reasons, and what may change for them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.explanations.trials import Trials
from scheduling.core.explanations.unblocking import Sought, seek
from scheduling.core.explanations.variants import JobChange, OwnerOptions
from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.policy_interface import Kind, Terms
from scheduling.core.reasons import Reason
from scheduling.core.round.decide import decide
from scheduling.core.round.gang_sizes import scale_of
from scheduling.core.simulation import SimulatedCluster
from scheduling.core.values import ClusterSnapshot, JobFacts, NodeFacts, QueuedJob, VcFacts
from tessera.reasons import ReasonCode

SPEC = ClusterSpec(
    cell_types={
        "a-pair": CellType(child="a", count=2),
        "a-node": CellType(child="a-pair", count=2, node_level=True),
        "b-node": CellType(child="b", count=4, node_level=True),
        "a-rack": CellType(child="a-node", count=2),
    },
    physical=(
        PhysicalCell(
            type="a-rack", children=(PhysicalCell(address="a0"), PhysicalCell(address="a1"))
        ),
        PhysicalCell(type="b-node", address="b0"),
    ),
    virtual_clusters={
        "v1": VcSpec(quotas=(Quota(chain="a-rack", level="a-node", count=1),)),
        "v2": VcSpec(quotas=(Quota(chain="b-node", level="b-node", count=1),)),
        "w": VcSpec(quotas=(Quota(chain="a-rack", level="a-node", count=1),)),
    },
)
TYPES = ("a", "b")
NAMES = frozenset(("worker", "alice", *SPEC.cell_types))
"""What is named on these clusters, by people."""


PolicyOf = tuple[str, dict[str, Any]]
PLAIN: Sequence[PolicyOf] = (("fifo", {}), ("fifo", {"backfill": False}), ("srtf", {}))


@st.composite
def clusters(draw: st.DrawFn, policies: Sequence[PolicyOf] = PLAIN) -> ClusterSnapshot:
    """Two virtual clusters of one tenant and one of another, with jobs that have just come."""
    vcs = []
    for number, (name, tenant) in enumerate((("v1", 1), ("v2", 1), ("w", 2)), start=1):
        policy, args = draw(st.sampled_from(policies))
        vcs.append(
            VcFacts(
                id=number,
                name=name,
                tenant=tenant,
                policy=policy,
                policy_args=args,
                max_devices_per_user=draw(st.sampled_from([None, None, 2, 4])),
                max_opportunistic_devices=draw(st.sampled_from([None, None, 0, 3])),
            )
        )
    queued = tuple(draw(jobs(number, vcs)) for number in range(1, draw(st.integers(3, 12))))
    plain = all(vc.policy == "fifo" for vc in vcs)
    return ClusterSnapshot(
        now=1000.0,
        round_number=1,
        round_seconds=10.0,
        seed=1,
        topology_version=1,
        spec=SPEC,
        vcs=tuple(vcs),
        nodes=tuple(
            NodeFacts(
                name=name,
                placeable=draw(st.integers(0, 7)) > 0,
                healthy=draw(st.integers(0, 7)) > 0,
                has_docker=True,
                cpus_per_device=4.0,
                memory_per_device=8,
            )
            for name in ("a0", "a1", "b0")
        ),
        queued=queued,
        holding=(),
        known={} if plain else {job.id: JobFacts(terms=draw(terms(job))) for job in queued},
    )


@st.composite
def terms(draw: st.DrawFn, job: QueuedJob) -> Terms:
    """What the owner has declared: nothing much, or between which sizes it may run."""
    scale = None
    if draw(st.booleans()):
        asked = job.demand.devices
        bounds = draw(st.sampled_from([(1, asked), (asked, 2 * asked), (1, 2 * asked)]))
        scale = scale_of(job.demand, *bounds)
    return Terms(
        tenant=job.tenant,
        kind=Kind.RIGID if scale is None else Kind.ELASTIC,
        scale=scale,
        estimate=draw(st.sampled_from([None, 600.0, 7200.0])),
    )


@st.composite
def jobs(draw: st.DrawFn, number: int, vcs: list[VcFacts]) -> QueuedJob:
    """A job of one role that may be held, wait for its time, or want what there is not."""
    vc = draw(st.sampled_from(vcs))
    borrows = draw(st.booleans())
    member = MemberDemand(
        role="worker",
        count=draw(st.sampled_from([1, 1, 2, 3])),
        devices=draw(st.sampled_from([1, 2, 4, 5])),
        device_types=draw(st.sampled_from([(), ("a",), ("b",)])),
        within=draw(st.sampled_from([Within.NODE, Within.NODE, Within.RACK])),
        cpus=draw(st.sampled_from([None, None, 8.0])),
    )
    return QueuedJob(
        id=number,
        vc=vc.id,
        tenant=vc.tenant,
        owner=draw(st.integers(1, 2)),
        owner_name="alice",
        priority=-1 if borrows else draw(st.sampled_from([10, 10, 100])),
        job_class=JobClass.OPPORTUNISTIC if borrows else JobClass.GUARANTEED,
        demand=Demand(members=(member,)),
        submitted=float(number),
        held=draw(st.integers(0, 9)) == 0,
        not_before=draw(st.sampled_from([None, None, None, 5000.0])),
    )


def settled(snapshot: ClusterSnapshot) -> tuple[ClusterSnapshot, dict[int, Reason], set[int]]:
    """The cluster after rounds until nothing moves any more; nobody ends.

    Returns:
        How things stand then, why each job waits, and the jobs that the next round would move:
        some policies never come to rest.
    """
    world = SimulatedCluster(snapshot, lambda _job: math.inf)
    for _ in range(40):
        result = world.decide()
        if not result.starts and not any(job.leaving for job in world.holding.values()):
            break
        world.advance(world.now + 100.0)
    now = world.snapshot()
    result = decide(now)
    moving = {start.job_id for start in result.starts}
    moving |= {preemption.for_job for preemption in result.preemptions}
    moving |= {
        job_id
        for job_id, reason in result.reasons.items()
        if reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT
    }
    return now, dict(result.reasons), moving


def patched(job: QueuedJob, step: JobChange, snapshot: ClusterSnapshot) -> QueuedJob:
    """The job after the changes of a step, read from the changes alone."""
    names = {vc.name: vc.id for vc in snapshot.vcs}
    (member,) = job.demand.members
    for path, value in step.changes.items():
        match path.rpartition(".")[2]:
            case "virtual_cluster":
                job = replace(job, vc=names[value])
            case "class":
                job = replace(job, job_class=JobClass(value), priority=-1)
            case "held" | "not_before" as name:
                job = replace(job, **{name: value})
            case "after":
                job = replace(job, after=())
            case "instances":
                member = replace(member, count=value)
            case "within":
                member = replace(member, within=Within(value))
            case "device_types":
                member = replace(member, device_types=tuple(value))
            case name:
                member = replace(member, **{name: value})
    return replace(job, demand=Demand(members=(member,)))


def sought(
    snapshot: ClusterSnapshot, reasons: dict[int, Reason], moving: set[int]
) -> Iterator[tuple[QueuedJob, Sought]]:
    """Every waiting job with what is found for it."""
    trials = Trials(snapshot, moving)
    for job in snapshot.queued:
        if job.id not in reasons:
            continue  # it starts, or is refused for good
        home = next(vc for vc in snapshot.vcs if vc.id == job.vc)
        others = [vc for vc in snapshot.vcs if vc.tenant == job.tenant and vc.id != job.vc]
        room = OwnerOptions(home=home, clusters=others, types=TYPES)
        yield job, seek(job, reasons[job.id], room, trials.refusal)


def started(snapshot: ClusterSnapshot, changed: QueuedJob) -> bool:
    """Whether a job starts in the next round when it is changed so."""
    queue = tuple(changed if one.id == changed.id else one for one in snapshot.queued)
    known = dict(snapshot.known)
    if (told := known.get(changed.id)) is not None:
        (before,) = (one.demand.devices for one in snapshot.queued if one.id == changed.id)
        known[changed.id] = replace(told, asked=None, terms=_terms(told.terms, before, changed))
    result = decide(replace(snapshot, queued=queue, known=known))
    return changed.id in {start.job_id for start in result.starts}


def _terms(told: Terms, before: int, changed: QueuedJob) -> Terms:
    """The sizes that the changed gang can have; a bound that was not said is what it asks for."""
    if told.scale is None:
        return told
    least, most = told.scale.minimum, told.scale.maximum
    asked = changed.demand.devices
    bounds = asked if least == before else least, asked if most == before else most
    return replace(told, scale=scale_of(changed.demand, *bounds))
