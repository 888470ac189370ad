"""Views of a virtual cluster for property tests of policies: few values, so that ties happen."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.policies.plans import settle
from scheduling.core.policy_interface import (
    Alloc,
    Facts,
    JobPhase,
    Kind,
    Part,
    Plan,
    PolicyJob,
    Pool,
    Scale,
    Snapshot,
    Step,
    Tenant,
    Terms,
    TypeInfo,
)

NOW = 100_000.0
CHOICES = ((), ("a",), ("b",), ("b", "a"))
TYPES = {
    "a": TypeInfo(nodes=2, node_devices=2, speed=1.0, price=1.0),
    "b": TypeInfo(nodes=1, node_devices=4, speed=2.0, price=3.0),
}


def make_job(
    job_id: int,
    gang: int = 1,
    *,
    types: tuple[str, ...] = (),
    phase: JobPhase = JobPhase.QUEUED,
    alloc: Alloc | None = None,
    borrows: bool = False,
    within: Within = Within.NODE,
    facts: Mapping[str, Any] | None = None,
    **terms: Any,
) -> PolicyJob:
    """A job of one role; a running one holds its gang of its first type unless told otherwise."""
    if alloc is None and phase is not JobPhase.QUEUED:
        alloc = Alloc(parts=(Part(n=gang, type=types[0] if types else "a", level=within.value),))
    priority = terms.pop("priority", 0)
    submitted = terms.pop("submitted", NOW - 1000.0)
    since = terms.pop("since", NOW - 600.0)
    member = MemberDemand(role="worker", count=1, devices=gang, device_types=types, within=within)
    return PolicyJob(
        id=job_id,
        owner=terms.pop("owner", 1),
        priority=-1 if borrows else priority,
        job_class=JobClass.OPPORTUNISTIC if borrows else JobClass.GUARANTEED,
        submitted=submitted,
        demand=Demand(members=(member,)),
        phase=phase,
        since=since,
        alloc=alloc,
        terms=Terms(**terms),
        facts=Facts(**(facts or {})),
    )


def make_view(jobs: Any, capacity: Mapping[str, int], **rest: Any) -> Snapshot:
    """A view at ``NOW`` with what is known of the types."""
    pool = Pool(capacity=capacity, types=TYPES, borrow=rest.pop("borrow", {}))
    return Snapshot(
        now=rest.pop("now", NOW),
        round_seconds=rest.pop("round_seconds", 60.0),
        round_number=rest.pop("round_number", 5),
        seed=7,
        pool=pool,
        jobs=tuple(jobs),
        **rest,
    )


@st.composite
def jobs(draw: st.DrawFn, job_id: int) -> PolicyJob:
    gang = draw(st.sampled_from([1, 1, 2, 3, 4]))
    elastic = draw(st.booleans())
    scale = None
    if elastic:
        step = draw(st.sampled_from([Step.ANY, Step.POWER_OF_TWO]))
        if step is Step.POWER_OF_TWO:
            gang = 1 << (gang.bit_length() - 1)
        scale = Scale(
            minimum=draw(st.integers(1, gang)), maximum=draw(st.integers(gang, 6)), step=step
        )
    executed = draw(st.sampled_from([0.0, 60.0, 5000.0]))
    return make_job(
        job_id,
        gang,
        types=draw(st.sampled_from(CHOICES)),
        borrows=draw(st.booleans()) and draw(st.booleans()),
        within=draw(st.sampled_from([Within.NODE, Within.RACK])),
        owner=draw(st.integers(1, 3)),
        priority=draw(st.integers(0, 1)),
        submitted=NOW - draw(st.sampled_from([0.0, 600.0, 7200.0])),
        since=NOW - draw(st.sampled_from([0.0, 60.0, 600.0])),
        tenant=draw(st.integers(1, 3)),
        weight=draw(st.sampled_from([1.0, 2.0])),
        tier=draw(st.sampled_from(["", "premium", "standard"])),
        kind=draw(st.sampled_from([Kind.ELASTIC, Kind.ADAPTIVE])) if elastic else Kind.RIGID,
        scale=scale,
        deadline=draw(st.sampled_from([None, NOW - 5.0, NOW + 500.0, NOW + 50_000.0])),
        estimate=draw(st.sampled_from([None, 300.0, 9000.0])),
        application=draw(st.sampled_from([None, "bert"])),
        preemptible=draw(st.sampled_from([True, True, False])),
        shareable=draw(st.booleans()),
        facts={
            "executed": executed,
            "gpu_seconds": executed * gang,
            "last_run": NOW if executed else None,
            "restarts": draw(st.integers(0, 2)),
            "steps_done": executed,
            "steps_left": draw(st.sampled_from([None, 0.0, 100.0, 40_000.0])),
            "step_time": draw(st.sampled_from([None, 1.0])),
            "util": draw(st.sampled_from([None, 0.2, 0.9])),
        },
    )


@st.composite
def views(draw: st.DrawFn, most: int = 7) -> Snapshot:
    """A legal view: what runs fits into what there is."""
    capacity = {"a": draw(st.integers(0, 4)), "b": draw(st.integers(0, 4))}
    borrow = {"a": draw(st.integers(0, 2))}
    left = dict(capacity)
    found: list[PolicyJob] = []
    for job_id in range(1, draw(st.integers(0, most)) + 1):
        job = draw(jobs(job_id))
        phase = draw(st.sampled_from([*JobPhase, JobPhase.RUNNING]))
        kind = next((k for k in (job.types or ("a", "b")) if left[k] >= job.gang), None)
        if phase is not JobPhase.QUEUED and kind is not None:
            left[kind] -= job.gang
            level = job.demand.members[0].within.value
            part = Part(n=job.gang, type=kind, level=level)
            job = replace(job, phase=phase, alloc=Alloc(parts=(part,)))
        found.append(job)
    tenants = tuple(
        Tenant(
            id=number,
            weight=draw(st.sampled_from([1.0, 3.0])),
            guarantee=draw(st.sampled_from([None, 1.0, 4.0])),
            ceiling=draw(st.sampled_from([None, None, 3.0])),
            parent=1 if number == 3 and draw(st.booleans()) else None,
        )
        for number in range(1, draw(st.sampled_from([0, 3])) + 1)
    )
    return make_view(found, capacity, borrow=borrow, tenants=tenants)


def applied(view: Snapshot, plan: Plan) -> Snapshot:
    """The view after a plan has been carried out at once."""
    held = settle(view, plan)
    after = [
        job
        if job.phase is JobPhase.LEAVING
        else replace(
            job,
            phase=JobPhase.RUNNING if job.id in held else JobPhase.QUEUED,
            alloc=held.get(job.id),
        )
        for job in view.jobs
        if job.id not in plan.reject
    ]
    return replace(view, jobs=tuple(after))
