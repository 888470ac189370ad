"""Columns of job lists: requested devices, queue position, and the right to release a hold."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

from scheduling.core.jobspec import Demand, MemberDemand, Within
from scheduling.core.messages import message, sentence
from scheduling.jobs.models import Job
from scheduling.rounds.models import QueueOrder
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.messages import Listing, Message

ASK_A_LEAD: Final = message("ask-lead-to-release")


def can_release(viewer: Viewer, job: Job) -> bool:
    """Return whether a job is held and the viewer may release it."""
    if not job.held or not viewer.can_stop(job.tenant_id, job.owner_id):
        return False
    is_own = job.held_by_id in (None, viewer.user_id)
    return is_own or viewer.can(Permission.STOP_ANY_JOB, job.tenant_id)


def is_left_to_leads(viewer: Viewer, *, tenant: int, owner: int, holder: int | None) -> bool:
    """Return whether the viewer cannot release a held job, but a lead can.

    Args:
        viewer: the requesting user.
        tenant: tenant of the job.
        owner: owner of the job.
        holder: the user who holds the job; None for its owner.
    """
    if holder in (None, owner):
        return False
    return holder != viewer.user_id and not viewer.can(Permission.STOP_ANY_JOB, tenant)


def waits_for_a_lead(viewer: Viewer, job: Job) -> bool:
    """Return whether a job is held by another user so that only a lead can release it."""
    return job.held and is_left_to_leads(
        viewer, tenant=job.tenant_id, owner=job.owner_id, holder=job.held_by_id
    )


_SHAPES = {
    Within.PCIE: message("in-one-pcie"),
    Within.NVLINK: message("in-one-nvlink"),
    Within.NUMA: message("in-one-numa"),
    Within.SOCKET: message("in-one-socket"),
    Within.NODE: message("in-one-node"),
    Within.RACK: message("in-one-rack"),
    Within.POOL: message("in-one-pool"),
}
_EACH = {
    Within.PCIE: message("in-one-pcie-each"),
    Within.NVLINK: message("in-one-nvlink-each"),
    Within.NUMA: message("in-one-numa-each"),
    Within.SOCKET: message("in-one-socket-each"),
    Within.NODE: message("in-one-node-each"),
}


def wants_in_words(demand: Demand) -> str:
    """Return a demand for display, such as ``2 × 4 × A100 in one node each``."""
    return _wanted(demand.roles)


@lru_cache(maxsize=4096)
def _wanted(members: tuple[MemberDemand, ...]) -> str:
    # Cached, since a list of jobs contains few different demands.
    if len(members) == 1:
        return sentence(_member(members[0]))
    roles = tuple(
        message("wanted-by-role", role=member.role, wanted=_member(member)) for member in members
    )
    return sentence(message("wanted-together", members=Listing(roles)))


def _member(member: MemberDemand) -> Message:
    types = _types(member.device_types)
    wanted = message("wanted-devices", devices=member.devices, types=types)
    if not member.devices:
        memory = round((member.memory or 0) / 2**30, 2)
        wanted = message("wanted-cpus", cpus=member.cpus or 0.0, memory=memory)
        if member.cpus == 1:
            wanted = message("wanted-one-cpu", memory=memory)
    if member.count > 1:
        wanted = message("wanted-instances", count=member.count, wanted=wanted)
    shapes = _EACH if member.count > 1 and member.within is not Within.RACK else _SHAPES
    shape = shapes.get(member.within)
    if shape is not None and (member.devices > 1 or member.within is Within.RACK):
        wanted = message("wanted-within", wanted=wanted, shape=shape)
    if member.pinned_cell is None:
        return wanted
    return message("wanted-on-pinned-cell", wanted=wanted, pinned_cell=member.pinned_cell)


def _types(types: Sequence[str]) -> Listing | Message:
    return Listing(tuple(types), "or") if types else message("any-device")


def jobs_ahead(virtual_clusters: Collection[int]) -> dict[int, int]:
    """Return the queue position of each waiting job in its virtual cluster and class.

    The position is the number of jobs that the policy tried before this job. Jobs that may not
    start yet, or that the policy does not try, are omitted. One query, and none without virtual
    clusters.
    """
    if not virtual_clusters:
        return {}
    found: dict[int, int] = {}
    lines = QueueOrder.objects.filter(pk__in=virtual_clusters)
    for line in lines.values_list("guaranteed", "opportunistic"):
        for jobs in line:
            found.update(zip(jobs, range(len(jobs)), strict=True))
    return found
