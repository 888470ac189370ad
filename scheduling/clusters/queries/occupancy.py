"""Jobs on devices, filtered by the viewer's rights."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from scheduling.clusters.queries.cluster_facts import ClusterFacts, HolderFacts
from tenants.roles import Permission
from tenants.viewers import Viewer

OCCUPANTS_KEPT: Final = 16_384


@dataclass(frozen=True, slots=True)
class Sight:
    """Rights that decide which facts about jobs on devices a viewer sees.

    Attributes:
        visible: tenants whose jobs the viewer sees; None for all.
        names: names of tenants whose jobs hold devices, as the viewer may see them.
    """

    visible: frozenset[int] | None
    names: tuple[tuple[int, str], ...]

    def shows(self, tenant_id: int) -> bool:
        """Return whether the viewer sees the jobs of a tenant."""
        return self.visible is None or tenant_id in self.visible


def sight_of(viewer: Viewer, facts: ClusterFacts) -> Sight:
    """Return the viewer's rights; equal for viewers with equal rights."""
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    return Sight(
        visible=None if visible is None else visible & facts.tenant_ids,
        names=tuple((number, viewer.name_of(number)) for number in sorted(facts.tenant_ids)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """The occupant of a device.

    Attributes:
        allocation: opaque ID of the allocation.
        tenant: name of the tenant, or "another tenant".
        job_id: None if the viewer may not see the job; name, user and VC are then empty.
        opportunistic: whether it is outside the guarantee of its virtual cluster.
        reserved: whether the device is only reserved, since its current job is leaving.
    """

    allocation: str
    tenant: str
    job_id: int | None
    name: str
    user: str
    virtual_cluster: str
    state: str
    opportunistic: bool
    reserved: bool


def occupants(facts: ClusterFacts, sight: Sight) -> Mapping[int, Occupant]:
    """Return the visible occupant of each device; its user takes precedence over a reservation."""
    return facts.once(("occupants", sight), lambda: _occupants(facts, sight))


def _occupants(facts: ClusterFacts, sight: Sight) -> Mapping[int, Occupant]:
    by_device: dict[int, Occupant] = {}
    seen: dict[tuple[str, bool, bool], Occupant] = {}
    names = dict(sight.names)
    for lease in facts.leases:
        uid, opportunistic, reserved = key = (lease.uid, lease.opportunistic, lease.reserved)
        if key not in seen:
            holder = facts.holders[lease.job_id]
            seen[key] = _occupant(
                uid,
                holder,
                is_visible=sight.shows(holder.tenant_id),
                tenant=names[holder.tenant_id],
                opportunistic=opportunistic,
                reserved=reserved,
            )
        if not reserved or lease.device_id not in by_device:
            by_device[lease.device_id] = seen[key]
    return by_device


@lru_cache(maxsize=OCCUPANTS_KEPT)
def _occupant(
    uid: str,
    holder: HolderFacts,
    *,
    is_visible: bool,
    tenant: str,
    opportunistic: bool,
    reserved: bool,
) -> Occupant:
    """Return the cached occupant if it is unchanged, so that comparisons by identity work."""
    return Occupant(
        allocation=hashlib.sha256(uid.encode()).hexdigest()[:12],
        tenant=tenant,
        job_id=holder.id if is_visible else None,
        name=holder.name if is_visible else "",
        user=holder.owner if is_visible else "",
        virtual_cluster=holder.virtual_cluster if is_visible else "",
        state=holder.state,
        opportunistic=opportunistic,
        reserved=reserved,
    )
