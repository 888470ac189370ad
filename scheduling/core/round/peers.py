"""Plans in which jobs share a device: the view of their policy, their legality, and their seats.

A policy plans groups of jobs. In each group one job holds the device, and the others are seated
beside it. A job that runs with its own device stays there, so that a pair forms and ends without
a restart of its holder.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.core.messages import sentence
from scheduling.core.policies.plans import IllegalPlanError
from scheduling.core.policy_interface import Alloc, JobPhase, Plan, PolicyJob, Share, Snapshot
from scheduling.core.sharing.hosts import GuestNeed, GuestRequest, Host, refusal_by_rules
from scheduling.core.sharing.peers import MOST_IN_TURNS
from scheduling.core.values import ClusterSnapshot, HeldPeer, QueuedJob

SEPARATE_AFTER_SECONDS = 60.0
"""Minimum seconds that a job runs beside another one before its policy may separate them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPeer:
    """The job beside which a policy runs another one, and the seconds of a turn (0: none)."""

    holder: int
    turn_seconds: float


def shared_view(jobs: Sequence[PolicyJob], snapshot: ClusterSnapshot) -> list[PolicyJob]:
    """Return the jobs of a view with their present groups, paces and permissions to share.

    A job that runs on a device that cannot be shared may not be paired.
    """
    groups: dict[int, list[HeldPeer]] = defaultdict(list)
    for held in snapshot.peers:
        groups[held.guest.holder].append(held)
    beside = {peer.guest.job.id: peer for peer in snapshot.peers}
    hosts = {host.holder for host in snapshot.hosts}
    found = []
    for one in jobs:
        job, peer = one, beside.get(one.id)
        runs_alone = job.phase is not JobPhase.QUEUED and peer is None
        if job.id in snapshot.peer_needs and (not runs_alone or job.id in hosts):
            job = replace(job, terms=replace(job.terms, shareable=True))
        holder = job.id if peer is None else peer.guest.holder
        if holder in groups and job.alloc is not None:
            job = _in_group(job, holder, groups[holder], peer)
        found.append(job)
    return found


def _in_group(
    job: PolicyJob, holder: int, peers: Sequence[HeldPeer], mine: HeldPeer | None
) -> PolicyJob:
    """Return a running job with its share of the device, and its measured pace."""
    ids = sorted((holder, *(peer.guest.job.id for peer in peers)))
    share = Share(
        fraction=1.0 / len(ids),
        group="+".join(map(str, ids)),
        turn_seconds=peers[0].turn_seconds,
    )
    paces = (mine or peers[0]).paces if len(peers) == 1 else None
    pace = None if paces is None else paces.holder if mine is None else paces.guest
    # The mean step of an attempt mixes both times, and use of a device is that of all its jobs.
    util = job.facts.util if paces is None else None
    return replace(
        job,
        alloc=None if job.alloc is None else replace(job.alloc, share=share),
        facts=replace(job.facts, step_time=None, util=util),
        beside=0 if mine is None else holder,
        pace=pace,
    )


def groups_of_plan(plan: Plan) -> dict[str, list[int]]:
    """Return the jobs of each group that shares devices, in ascending order."""
    groups: dict[str, list[int]] = defaultdict(list)
    for job_id in sorted(plan.allocs):
        share = plan.allocs[job_id].share
        if share is not None:
            groups[share.group or f"#{job_id}"].append(job_id)
    return groups


def check_groups(plan: Plan) -> None:
    """Raise if nodes cannot apply the groups of a plan.

    Raises:
        IllegalPlanError: a group is not of two jobs (up to four that take turns), its jobs have
            several devices or other types, or their shares exceed the device.
    """
    for name, jobs in groups_of_plan(plan).items():
        allocs = [plan.allocs[job_id] for job_id in jobs]
        shares = [alloc.share for alloc in allocs if alloc.share is not None]
        turns = {share.turn_seconds for share in shares}
        most = MOST_IN_TURNS if turns != {0.0} else 2
        is_legal = (
            2 <= len(jobs) <= most
            and len(turns) == 1
            and min(turns) >= 0.0
            and len({_only_type(alloc) for alloc in allocs} - {None}) == 1
            and all(_only_type(alloc) is not None for alloc in allocs)
            and sum(share.fraction for share in shares) <= 1.0 + 1e-6
        )
        if plan.offer or not is_legal:
            raise IllegalPlanError(sentence("group-unsupported", name=name[:100]))


def _only_type(alloc: Alloc) -> str | None:
    """Return the type of an allocation of exactly one device, or None."""
    return alloc.parts[0].type if alloc.devices == 1 and len(alloc.parts) == 1 else None


def planned_peers(view: Snapshot, plan: Plan) -> dict[int, PlannedPeer]:
    """Return the jobs that a plan seats beside another one, by ID."""
    groups = groups_of_plan(plan)
    if not groups:
        return {}
    jobs = {job.id: job for job in view.jobs}
    places = {job_id: place for place, job_id in enumerate(plan.order)}
    found: dict[int, PlannedPeer] = {}
    for members in groups.values():
        ordered = sorted(members, key=lambda one: (places.get(one, len(places)), one))
        holder = _holder_of([jobs[one] for one in ordered])
        for job_id in ordered:
            share = plan.allocs[job_id].share
            if job_id != holder and share is not None:
                found[job_id] = PlannedPeer(holder=holder, turn_seconds=share.turn_seconds)
    return found


def _holder_of(members: Sequence[PolicyJob]) -> int:
    """Return the job of a group that holds the device: the one that most others are beside."""
    own = [job for job in members if job.phase is JobPhase.RUNNING and not job.beside]
    if own:
        beside = [job.beside for job in members]
        return min(own, key=lambda job: (-beside.count(job.id), job.since, job.id)).id
    # A job beside one of another group gets a device when that one leaves.
    running = [job for job in members if job.phase is JobPhase.RUNNING]
    return (running or list(members))[0].id


def separation_of(
    view: Snapshot, plan: Plan, job: PolicyJob, planned: Mapping[int, PlannedPeer]
) -> str:
    """Return the rule by which a running job leaves its device for another grouping, or nothing.

    A job beside one that leaves stays, since it gets the device.
    """
    seat = planned.get(job.id)
    if not job.beside:
        return "" if seat is None else sentence("policy-pairs", holder=seat.holder)
    if seat is not None and seat.holder == job.beside:
        return ""
    if not _stays(job.beside, plan, planned) or view.now - job.since < SEPARATE_AFTER_SECONDS:
        return ""
    return sentence("policy-separates", holder=job.beside)


def _stays(holder: int, plan: Plan, planned: Collection[int]) -> bool:
    """Return whether a plan leaves the device to a holder."""
    return holder in plan.allocs and holder not in planned


def seat_refused(
    job: QueuedJob, need: GuestNeed, host: Host, nodes: Collection[str] | None
) -> bool:
    """Return whether a job can never run on the device of a holder, whatever runs there.

    Args:
        job: the waiting job.
        need: its device memory.
        host: the device.
        nodes: nodes on which the job may run; None for all.
    """
    request = GuestRequest(
        tenant=job.tenant,
        application=need.application,
        types=job.demand.members[0].device_types,
        floor=need.floor,
        wants=need.wants,
    )
    is_elsewhere = nodes is not None and host.node not in nodes
    return is_elsewhere or refusal_by_rules(request, host) is not None
