"""What a waiting job can change so that it starts now."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.forecast.forward import World
from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.core.rounds import decide
from scheduling.core.trials import Trials
from scheduling.core.unblocking import GATES, PATIENCE, Sought, seek
from scheduling.core.values import ClusterSnapshot, NodeFacts, QueuedJob, VcFacts
from scheduling.core.variants import Room, Step

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


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSnapshot:
    policies = st.sampled_from([("fifo", {}), ("fifo", {"backfill": False}), ("srtf", {})])
    vcs = []
    for number, (name, tenant) in enumerate((("v1", 1), ("v2", 1), ("w", 2)), start=1):
        policy, args = draw(policies)
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
    )


@st.composite
def jobs(draw: st.DrawFn, number: int, vcs: list[VcFacts]) -> QueuedJob:
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


def settled(snapshot: ClusterSnapshot) -> tuple[ClusterSnapshot, dict[int, Reason]]:
    """The cluster after rounds until nothing moves any more; nobody ends."""
    world = World(snapshot, lambda _job: math.inf)
    for _ in range(40):
        result = world.decide()
        if not result.starts and not any(job.leaving for job in world.holding.values()):
            break
        world.advance(world.now + 100.0)
    return world.snapshot(), dict(world.reasons)


def patched(job: QueuedJob, step: Step, snapshot: ClusterSnapshot) -> QueuedJob:
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


def sought(snapshot: ClusterSnapshot, reasons: dict[int, Reason]) -> Iterator[tuple[Any, Sought]]:
    """Every waiting job with what is found for it."""
    trials = Trials(snapshot, ())
    for job in snapshot.queued:
        home = next(vc for vc in snapshot.vcs if vc.id == job.vc)
        others = [vc for vc in snapshot.vcs if vc.tenant == job.tenant and vc.id != job.vc]
        room = Room(home=home, clusters=others, types=TYPES)
        yield job, seek(job, reasons[job.id], room, trials.refusal)


def check_first_steps(snapshot: ClusterSnapshot) -> None:
    snapshot, reasons = settled(snapshot)

    for job, found in sought(snapshot, reasons):
        for step in found.steps[:1]:
            changed = patched(job, step, snapshot)
            queue = tuple(changed if one.id == job.id else one for one in snapshot.queued)
            result = decide(replace(snapshot, queued=queue))
            assert job.id in {start.job_id for start in result.starts}, (step, reasons[job.id])
        code: ReasonCode | None = reasons[job.id].code
        if code in GATES:
            opened = replace(job, held=False, after=(), after_failed=(), not_before=None)
            refusal = Trials(snapshot, ()).refusal(opened)
            code = refusal.code if refusal is not None else None
        if code not in PATIENCE:
            assert found.steps or found.proof, (job, reasons[job.id])


def check_proofs(snapshot: ClusterSnapshot) -> None:
    """Where nothing is found, no job of the owner starts whatever it asks for."""
    snapshot, reasons = settled(snapshot)

    for job, found in sought(snapshot, reasons):
        if not found.proof:
            continue
        least = MemberDemand(role="worker", count=1, devices=1)
        for vc in snapshot.vcs:
            for job_class in JobClass:
                changed = replace(
                    job,
                    held=False,
                    after=(),
                    after_failed=(),
                    not_before=None,
                    vc=vc.id,
                    job_class=job_class,
                    priority=-1 if job_class is JobClass.OPPORTUNISTIC else job.priority,
                    demand=Demand(members=(least,)),
                )
                if vc.tenant != job.tenant or job.job_class is JobClass.OPPORTUNISTIC:
                    continue
                queue = tuple(changed if one.id == job.id else one for one in snapshot.queued)
                result = decide(replace(snapshot, queued=queue))
                assert job.id not in {start.job_id for start in result.starts}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_a_job_starts_in_the_next_round_after_its_first_step(snapshot: ClusterSnapshot) -> None:
    check_first_steps(snapshot)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_where_no_step_is_found_not_even_one_device_starts(snapshot: ClusterSnapshot) -> None:
    check_proofs(snapshot)


@pytest.mark.soak
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(clusters())
def test_steps_and_proofs_hold_on_thousands_of_clusters(snapshot: ClusterSnapshot) -> None:
    check_first_steps(snapshot)
    check_proofs(snapshot)


def test_a_job_whose_victims_are_leaving_is_told_nothing_else() -> None:
    reason = Reason(code=ReasonCode.WAITING_VICTIM_CHECKPOINT, text="It starts when they left.")
    vc = VcFacts(id=1, name="v1", tenant=1, policy="fifo")
    job = QueuedJob(
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

    found = seek(job, reason, Room(home=vc), lambda _: None)

    assert found == Sought()
