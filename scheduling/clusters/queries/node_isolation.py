"""Isolation of nodes: levels, owner, dedication, visible paths, and reasons of states."""

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
    """Return the paths of a node that jobs of a tenant see, in the order of the admin's list.

    Args:
        stored: ``Node.visible_paths``; an entry without tenants applies to all.
        tenant_id: tenant of the job.
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
    """Return the checkpoint directories of a node; a job sees only its own subdirectory of one.

    Args:
        stored: ``Node.visible_paths``.
    """
    return [entry["path"] for entry in stored if entry.get("checkpoints")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelView:
    """One isolation level of a node.

    Attributes:
        cause: code of the reason why it is not available; empty if it is.
        detail: the failed check, for node managers.
        remedy: a change that makes it available.
    """

    level: str
    available: bool
    cause: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """One own network of plain jobs on a node; fields as in ``LevelView``."""

    network: str
    available: bool
    cause: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathView:
    """A path of a node that jobs may see; without tenants, jobs of all tenants see it.

    Attributes:
        checkpoints: whether jobs do not see the path, but may have checkpoint directories in it.
    """

    path: str
    writable: bool
    checkpoints: bool = False
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIsolation:
    """The isolation of jobs on a node.

    Attributes:
        level: best level for jobs without an image; empty before the first probe.
        levels: results of the last probe.
        owner: tenant that owns the node until a reset; empty without one, and "another tenant" for
            viewers without the right.
        owned_since: start of that tenancy.
        dedicated_to: the only tenants whose jobs may use the node; empty for all.
        visible_paths: paths of all tenants for node managers, otherwise of the viewer's tenants.
        job_network: setting for plain jobs of one instance; if empty, the file of the node
            applies.
        plain_network: network of these jobs; empty if unknown.
        container_network: network of containers of one instance; empty if unknown.
        declared_network: setting in the file of the node; only in node details, like ``networks``.
        networks: results of the last probe of own networks.
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
    """Annotate nodes that belong to a tenant with ``owner_id`` and ``owned_since``."""
    return nodes.annotate(
        open_tenancy=FilteredRelation("tenancies", condition=Q(tenancies__reset_at=None)),
        owner_id=F("open_tenancy__tenant_id"),
        owned_since=F("open_tenancy__taken_at"),
    )


def names_of_tenants(nodes: Iterable[Node]) -> Mapping[int, str]:
    """Return the names of tenants in visible paths by ID; no query if there are none."""
    wanted = {t for node in nodes for entry in node.visible_paths for t in entry["tenants"]}
    if not wanted:
        return {}
    return dict(Tenant.objects.unscoped().filter(pk__in=wanted).values_list("id", "name"))


def isolation_of(viewer: Viewer, node: Node, names: Mapping[int, str]) -> NodeIsolation:
    """Return the isolation of a node, as far as the viewer may see it.

    Args:
        viewer: the reader.
        node: a node read by ``with_owners``.
        names: names of tenants in visible paths.
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
    """Return the isolation with the own networks from the node's last probe.

    Args:
        isolation: isolation of the node.
        inventory: stored inventory of the node.
        may_manage: whether the viewer may manage nodes and see details.
    """
    try:
        probes = [NetworkProbe.from_json(one) for one in inventory.get("networks", ())]
    except ProtocolError:  # written by another version
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
        except ProtocolError:  # written by another version
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


# Transports and the operating system write these reasons, which may contain hosts, ports, users
# and paths.
_OF_CONTACT: Final = {
    NodeState.SUSPECT: sentence("node-not-answered-while"),
    NodeState.DOWN: sentence("node-not-answer"),
}


def state_reason_for(state: str, reason: str, *, may_manage: bool) -> str:
    """Return the reason of a node's state for a reader.

    Args:
        state: state of the node; readers without ``may_manage`` get no other fact about a lost
            contact.
        reason: the stored reason; an admin's reason to cordon is public.
        may_manage: whether the reader may manage nodes.
    """
    if may_manage or not reason:
        return reason
    return _OF_CONTACT.get(NodeState(state), reason)
