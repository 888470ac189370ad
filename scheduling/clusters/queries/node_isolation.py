"""Isolation of nodes: levels, owner, dedication, visible paths, and readable state reasons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db.models import F, FilteredRelation, Q, QuerySet

from scheduling.clusters.models import Node
from scheduling.core.messages import sentence
from scheduling.enums import NodeState
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera import job_networks
from tessera.isolation import NONE, IsolationProbe, VisiblePath, remedy
from tessera.job_networks import NetworkProbe
from tessera.wire import ProtocolError


def visible_to(stored: Sequence[Mapping[str, Any]], tenant_id: int) -> list[VisiblePath]:
    """The paths of a node that jobs of a tenant see, in the order in which admins wrote them.

    Args:
        stored: ``Node.visible_paths``; an entry without tenants is for all.
        tenant_id: of the job.
    """
    return [
        VisiblePath(
            path=entry["path"],
            writable=bool(entry.get("writable")),
            checkpoints=bool(entry.get("checkpoints")),
        )
        for entry in stored
        if not entry.get("tenants") or tenant_id in entry["tenants"]
    ]


def hidden_from_jobs(stored: Sequence[Mapping[str, Any]]) -> list[str]:
    """Checkpoint directories of a node: a job sees at most its own subdirectory of one.

    Args:
        stored: ``Node.visible_paths``.
    """
    return [entry["path"] for entry in stored if entry.get("checkpoints")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelView:
    """One isolation level of a node.

    Attributes:
        cause: why it is not available, a code; empty if it is.
        detail: the check that was tried, for node managers.
        remedy: a change that makes it available.
    """

    level: str
    available: bool
    cause: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """One own network of plain jobs on a node, as ``LevelView``."""

    network: str
    available: bool
    cause: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathView:
    """A path of a node that jobs may see; no tenants: jobs of all.

    Attributes:
        checkpoints: jobs do not see it, but may have their directories for checkpoints in it.
    """

    path: str
    writable: bool
    checkpoints: bool = False
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIsolation:
    """How a node separates jobs.

    Attributes:
        level: the best for jobs without an image; empty while none was tried.
        levels: those that the last probe tried.
        owner: the tenant that it belongs to until a reset; empty: nobody, "another tenant" for
            viewers without the right.
        owned_since: when that tenant took it.
        dedicated_to: the only tenants whose jobs it takes; empty: all.
        visible_paths: of all tenants for node managers, else of the viewer's.
        job_network: the setting for plain jobs of one instance; empty: by the node's own file.
        plain_network, container_network: networks of these jobs and containers; empty: not known.
        declared_network: the setting in the node's own file; of one node only, like ``networks``.
        networks: own networks as the last probe tried them.
    """

    level: str
    levels: tuple[LevelView, ...] = ()
    owner: str = ""
    owned_since: datetime | None = None
    dedicated_to: tuple[str, ...] = ()
    visible_paths: tuple[PathView, ...] = ()
    job_network: str = ""
    plain_network: str = ""
    container_network: str = ""
    declared_network: str = ""
    networks: tuple[NetworkView, ...] = ()


def with_owners(nodes: "QuerySet[Node]") -> "QuerySet[Node]":
    """Nodes with ``owner_id`` and ``owned_since``, of those that belong to a tenant."""
    return nodes.annotate(
        open_tenancy=FilteredRelation("tenancies", condition=Q(tenancies__reset_at=None)),
        owner_id=F("open_tenancy__tenant_id"),
        owned_since=F("open_tenancy__taken_at"),
    )


def names_of_tenants(nodes: Iterable[Node]) -> Mapping[int, str]:
    """Names by id of the tenants that visible paths name; a query only if one does."""
    wanted = {t for node in nodes for entry in node.visible_paths for t in entry["tenants"]}
    if not wanted:
        return {}
    return dict(Tenant.objects.unscoped().filter(pk__in=wanted).values_list("id", "name"))


def isolation_of(viewer: Viewer, node: Node, names: Mapping[int, str]) -> NodeIsolation:
    """The isolation of a node, as far as a viewer may know it.

    Args:
        viewer: the reader.
        node: read ``with_owners``.
        names: of tenants that visible paths name.
    """
    may = viewer.can(Permission.MANAGE_NODES)
    owner, since = getattr(node, "owner_id", None), getattr(node, "owned_since", None)
    return NodeIsolation(
        level=node.isolation_level,
        levels=tuple(_levels(node, may_manage=may)),
        owner=viewer.name_of(owner) if owner is not None else "",
        owned_since=since,
        dedicated_to=tuple(viewer.name_of(tenant) for tenant in node.dedicated_to),
        visible_paths=_paths(viewer, node, names, may_manage=may),
        job_network=node.job_network,
        plain_network=node.plain_network,
        container_network=node.container_network,
    )


def with_networks(
    isolation: NodeIsolation, inventory: Mapping[str, Any], *, may_manage: bool
) -> NodeIsolation:
    """The same with the own networks of the node from its last probe.

    Args:
        isolation: of the node.
        inventory: of the node, as it is stored.
        may_manage: the viewer may manage nodes, and sees details.
    """
    try:
        probes = [NetworkProbe.from_json(one) for one in inventory.get("networks", ())]
    except ProtocolError:  # of another version
        probes = []
    networks = tuple(
        NetworkView(
            network=probe.network,
            available=probe.available,
            cause=probe.cause,
            detail=probe.detail if may_manage else "",
            remedy=job_networks.remedy(probe.cause),
        )
        for probe in probes
    )
    declared = str(inventory.get("job_network", ""))
    return replace(isolation, networks=networks, declared_network=declared)


def _levels(node: Node, *, may_manage: bool) -> Iterable[LevelView]:
    for stored in node.isolation:
        try:
            probe = IsolationProbe.from_json(stored)
        except ProtocolError:  # of another version
            continue
        yield LevelView(
            level=probe.level,
            available=probe.available,
            cause=probe.cause,
            detail=probe.detail if may_manage else "",
            remedy=remedy(probe.cause) if probe.level != NONE else "",
        )


def _paths(
    viewer: Viewer, node: Node, names: Mapping[int, str], *, may_manage: bool
) -> tuple[PathView, ...]:
    if may_manage:
        return tuple(
            PathView(
                path=entry["path"],
                writable=entry["writable"],
                checkpoints=entry.get("checkpoints", False),
                tenants=tuple(names.get(tenant, "") for tenant in entry["tenants"]),
            )
            for entry in node.visible_paths
        )
    mine = viewer.tenant_ids(Permission.VIEW_CLUSTER) or ()
    seen = {
        (visible.path, visible.writable, visible.checkpoints)
        for tenant in mine
        for visible in visible_to(node.visible_paths, tenant)
    }
    return tuple(
        PathView(path=path, writable=writable, checkpoints=checkpoints)
        for path, writable, checkpoints in sorted(seen)
    )


# Written by transports and the operating system: they may name hosts, ports, users and paths.
_OF_CONTACT: Final = {
    NodeState.SUSPECT: sentence("node-not-answered-while"),
    NodeState.DOWN: sentence("node-not-answer"),
}


def state_reason_for(state: str, reason: str, *, may_manage: bool) -> str:
    """The reason of a node's state.

    Args:
        state: of the node; without ``may_manage``, the only fact shown about a lost contact.
        reason: as it is stored. An admin's reason to cordon is public.
        may_manage: the reader may manage nodes.
    """
    if may_manage or not reason:
        return reason
    return _OF_CONTACT.get(NodeState(state), reason)
