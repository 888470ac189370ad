"""Rows of starting jobs: attempts, members, leases and ports."""

import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from scheduling.clusters.services.node_tenancies import take_nodes
from scheduling.common.on_commit import wake_node_services
from scheduling.core.jobspec import Demand, MemberDemand
from scheduling.core.messages import message, sentence
from scheduling.core.round.gang_sizes import on_type
from scheduling.core.round.layouts import Layout, layout_of, rates_of
from scheduling.core.round.ports import FIRST_PORT, LAST_PORT
from scheduling.core.round_result import GuestStart, PlacedMember, Start
from scheduling.enums import LeaseKind, MemberStep
from scheduling.jobs.models import Job
from scheduling.jobs.services.lifecycle import Note, admit_jobs
from scheduling.rounds.services.plans import create_plans
from scheduling.rounds.snapshot import Reading
from scheduling.runs.models import Attempt, CpuLease, Lease, Member
from tessera.isolation import NONE

BOUND_TO_A_TYPE: Final = frozenset({"D0", "D1"})
_READ: Final = ("attempts_made", "demand", "model_fingerprint", "spec", "tenant", "terms")
"""Columns of starting jobs that are read; without the submitted text, which may be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestSeat:
    """The place of a starting guest, and the member beside which it runs."""

    start: GuestStart
    holder_member: int
    is_peer: bool = False
    turn_seconds: float = 0.0


def create_attempts(
    *,
    number: int,
    starts: Sequence[Start],
    reading: Reading,
    now: datetime,
    seats: Mapping[int, GuestSeat] = MappingProxyType({}),
) -> frozenset[int]:
    """Create attempts, members and leases of all starting jobs, with one statement each.

    Args:
        number: number of the round.
        starts: jobs with their placements.
        reading: the snapshot with its rows.
        now: time to store.
        seats: place by job that starts as a guest.

    Returns:
        The IDs of the jobs that start. Jobs without enough free ports are skipped: the round
        counts ports, but the demands of jobs queued by older versions do not contain them.

    Raises:
        StaleJobError: a job is not queued any more; the caller's transaction must roll back.
    """
    if not starts:
        return frozenset()
    jobs = Job.objects.unscoped().only(*_READ).in_bulk([start.job_id for start in starts])
    free = _free_ports()
    starts = _with_ports(jobs, starts, len(free))
    if not starts:
        return frozenset()
    # A recently freed port may still be in use on a node; a random choice makes this rare.
    wanted = sum(_ports_wanted(jobs[start.job_id], start) for start in starts)
    ports = random.Random(number).sample(free, wanted)  # noqa: S311 no secret depends on it
    attempts = Attempt.objects.bulk_create(
        _attempt_row(
            number=number,
            job=jobs[start.job_id],
            start=start,
            reading=reading,
            port=ports.pop(),
            now=now,
            seat=seats.get(start.job_id),
        )
        for start in starts
    )
    _keep_types(attempts)
    create_plans(attempts, reading.snapshot.grids, now=now)
    tenancies = take_nodes(starts, jobs, reading.node_ids, now=now)
    members = _create_members(
        attempts, starts, reading, ports=ports, tenancies=tenancies, seats=seats
    )
    admit_jobs(
        jobs={a.job_id: _admit_note(a, s) for a, s in zip(attempts, starts, strict=True)}, now=now
    )
    wake_node_services(member.node_id for member in members)
    return frozenset(start.job_id for start in starts)


def _create_members(
    attempts: Sequence[Attempt],
    starts: Sequence[Start],
    reading: Reading,
    *,
    ports: list[int],
    tenancies: Mapping[int, int],
    seats: Mapping[int, GuestSeat],
) -> list[Member]:
    """Create the members of all attempts, and the leases of their devices.

    Args:
        attempts: one for each start.
        starts: jobs with their placements.
        reading: the snapshot with its rows.
        ports: free ports to assign.
        tenancies: open tenancy by node ID, for nodes whose members run without isolation.
        seats: place by job that starts as a guest.
    """
    placed = [
        (attempt, member)
        for attempt, start in zip(attempts, starts, strict=True)
        for member in start.members
    ]
    members = Member.objects.bulk_create(
        _member_row(
            attempt=attempt,
            placed=one,
            node_id=reading.node_ids[one.node],
            ports=ports,
            tenancies=tenancies,
        )
        for attempt, one in placed
    )
    Lease.objects.bulk_create(
        Lease(
            device_id=reading.device_ids[leaf.address],
            attempt=attempt,
            member=member,
            job_id=attempt.job_id,
            virtual_cell=leaf.virtual,
            taken_at=attempt.created_at,
            **_guest_columns(seats.get(attempt.job_id)),
        )
        for (attempt, one), member in zip(placed, members, strict=True)
        for leaf in one.leaves
    )
    CpuLease.objects.bulk_create(_cpu_leases(placed, members))
    return members


def _cpu_leases(
    placed: Sequence[tuple[Attempt, PlacedMember]], members: Sequence[Member]
) -> Iterator[CpuLease]:
    """Yield the leases of the instances of jobs without devices."""
    roles: dict[tuple[int, str], MemberDemand] = {}
    for (attempt, one), member in zip(placed, members, strict=True):
        if attempt.devices:
            continue
        if (attempt.job_id, one.role) not in roles:
            demand = Demand.from_json(attempt.job.demand)
            roles |= {(attempt.job_id, role.role): role for role in demand.roles}
        role = roles[attempt.job_id, one.role]
        yield CpuLease(
            node_id=member.node_id,
            attempt=attempt,
            member=member,
            job_id=attempt.job_id,
            cpus=role.cpus or 0.0,
            memory_bytes=role.memory or 0,
            taken_at=attempt.created_at,
        )


def _guest_columns(seat: GuestSeat | None) -> dict[str, Any]:
    """Return the columns of a guest's lease; none for a job with its own devices."""
    if seat is None:
        return {}
    start = seat.start
    return {
        "kind": LeaseKind.GUEST,
        "slot": start.slot,
        "beside_id": seat.holder_member,
        "mode": start.mode,
        "floor": start.floor,
        "most": start.most,
        "is_peer": seat.is_peer,
        "turn_seconds": seat.turn_seconds,
    }


def _admit_note(attempt: Attempt, start: Start) -> Note:
    nodes = sorted({member.node for member in start.members})
    count = sum(len(member.leaves) for member in start.members)
    text = sentence(
        "placed-by-round",
        number=attempt.round_number,
        devices=message("devices", n=count),
        nodes=", ".join(nodes),
    )
    if not count:
        text = sentence(
            "placed-without-devices", number=attempt.round_number, nodes=", ".join(nodes)
        )
    return Note(
        text=text,
        attempt=attempt.number,
        detail={"round": attempt.round_number, "nodes": nodes, "devices": count},
    )


def _attempt_row(
    *,
    number: int,
    job: Job,
    start: Start,
    reading: Reading,
    port: int,
    now: datetime,
    seat: GuestSeat | None,
) -> Attempt:
    job.attempts_made += 1
    leaves = [leaf.address for member in start.members for leaf in member.leaves]
    return Attempt(
        job=job,
        number=job.attempts_made,
        uid=uuid.uuid4().hex,
        round_number=number,
        opportunistic=start.opportunistic,
        is_guest=seat is not None,
        is_peer=seat is not None and seat.is_peer,
        port=port,
        demand=start.demand.to_json() if start.demand is not None else None,
        devices=len(leaves),
        device_type=reading.device_types.get(leaves[0], "") if leaves else "",
        layout=_layout(job, start, reading),
        nodes=len({member.node for member in start.members}),
        created_at=now,
    )


def _keep_types(attempts: Sequence[Attempt]) -> None:
    """Pin jobs whose results depend on the device type to the type of their first start."""
    for attempt in attempts:
        job = attempt.job
        if job.terms.get("bits") not in BOUND_TO_A_TYPE or not attempt.device_type:
            continue
        demand = on_type(Demand.from_json(job.demand), attempt.device_type).to_json()
        if demand != job.demand:
            Job.objects.unscoped().filter(pk=job.pk).update(demand=demand)


def _layout(job: Job, start: Start, reading: Reading) -> Layout | None:
    """Return the layout of logical workers over the allocation; None if the job has none."""
    workers = job.terms.get("workers")
    if workers is None:
        return None
    known = reading.snapshot.known.get(job.pk)
    members = [
        [reading.device_types.get(leaf.address, "") for leaf in member.leaves]
        for member in sorted(start.members, key=lambda member: member.node_rank)
    ]
    if known is None:
        return layout_of(workers, members, {})
    rates = rates_of(known.seen, workers)
    return layout_of(workers, members, rates, known.facts.sharing)


def _member_row(
    *,
    attempt: Attempt,
    placed: PlacedMember,
    node_id: int,
    ports: list[int],
    tenancies: Mapping[int, int],
) -> Member:
    return Member(
        attempt=attempt,
        node_id=node_id,
        role=placed.role,
        rank=placed.rank,
        node_rank=placed.node_rank,
        devices=list(placed.device_indices),
        ports={
            label: [ports.pop() for _ in range(count)]
            for label, count in _ports_of(attempt.job, placed.role).items()
        },
        step=MemberStep.WAITING,
        step_since=attempt.created_at,
        least_isolation=placed.isolation,
        tenancy_id=tenancies[node_id] if placed.isolation == NONE else None,
    )


def _with_ports(jobs: Mapping[int, Job], starts: Sequence[Start], free: int) -> list[Start]:
    """Return the starts for which enough ports are free, in the order of the round."""
    granted: list[Start] = []
    for start in starts:
        wanted = _ports_wanted(jobs[start.job_id], start)
        if wanted <= free:
            granted.append(start)
            free -= wanted
    return granted


def _ports_wanted(job: Job, start: Start) -> int:
    """Return the number of ports of an attempt: the rendezvous port and the instances' ports."""
    return 1 + sum(sum(_ports_of(job, placed.role).values()) for placed in start.members)


def _ports_of(job: Job, role: str) -> Mapping[str, int]:
    """Return the number of ports of one instance, by label."""
    # The stored document was validated at the submit.
    ports: Mapping[str, int] = job.spec["roles"][role].get("ports", {})
    return ports


def _free_ports() -> list[int]:
    """Return the ports that no open attempt holds."""
    taken = set(Attempt.objects.filter(ended_at=None).values_list("port", flat=True))
    for ports in (
        Member.objects.filter(attempt__ended_at=None)
        .exclude(ports={})
        .values_list("ports", flat=True)
    ):
        taken.update(port for group in ports.values() for port in group)
    return [port for port in range(FIRST_PORT, LAST_PORT + 1) if port not in taken]
