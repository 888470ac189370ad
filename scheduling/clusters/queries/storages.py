"""Storages for pages and REST, limited to the viewer's rights."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduling.clusters.models import Storage, VirtualCluster
from scheduling.common.storages import ENGINE, NodeProbes, node_probes, rule_of
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageNodeView:
    """A storage on one node.

    Attributes:
        usable: whether jobs can use it there, with or without an image.
        cause: code of the reason why it is not usable; ``mounted-by-engine`` means for containers
            only; ``unknown``
            before the first probe.
    """

    node: str
    usable: bool
    cause: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageView:
    """A storage for a viewer.

    Attributes:
        source: only for node managers, otherwise empty.
        tenants, virtual_clusters: names of those that may use it; if both are empty, all may.
        Viewers without the right get only their own.
        default_for: virtual clusters whose jobs use it without a request.
        nodes: the nodes, only for node managers.
        usable_nodes: number of nodes on which jobs can use it.
        total_bytes, free_bytes: figures of the newest probes; 0 if unknown.
    """

    id: int
    name: str
    source: str
    mount: str
    writable: bool
    checkpoints: bool
    tenants: tuple[str, ...]
    virtual_clusters: tuple[str, ...]
    default_for: tuple[str, ...]
    note: str
    nodes: tuple[StorageNodeView, ...]
    usable_nodes: int
    total_bytes: int
    free_bytes: int
    version: int


def list_storages(viewer: Viewer) -> tuple[StorageView, ...]:
    """Return the storages that jobs of the viewer may use, or all for node managers, by name."""
    viewer.require(Permission.VIEW_CLUSTER, what="the storages")
    may = viewer.can(Permission.MANAGE_NODES)
    own = None if may else viewer.tenant_ids(Permission.VIEW_JOBS)
    rows = list(Storage.objects.order_by("name"))
    if not rows:
        return ()
    clusters = VirtualCluster.objects.unscoped().order_by("name")
    if not may:
        clusters = clusters.filter(archived_at=None)
    vcs = {
        pk: (name, tenant)
        for pk, name, tenant in clusters.values_list("id", "name", "tenant_id")
        if own is None or tenant in own
    }
    tenants = {
        pk: name
        for pk, name in Tenant.objects.unscoped().order_by("name").values_list("id", "name")
        if own is None or pk in own
    }
    nodes = node_probes("default")
    found = [_view(row, vcs, tenants, nodes, may_manage=may) for row in rows]
    serving = {
        row.pk for row in rows if any(rule_of(row).serves(t, vc) for vc, (_, t) in vcs.items())
    }
    return tuple(view for view in found if may or view.id in serving)


def _view(
    row: Storage,
    vcs: Mapping[int, tuple[str, int]],
    tenants: Mapping[int, str],
    nodes: Sequence[NodeProbes],
    *,
    may_manage: bool,
) -> StorageView:
    views = tuple(_node_view(node, row.source) for node in nodes)
    usable = [view for view in views if view.usable]
    return StorageView(
        id=row.pk,
        name=row.name,
        source=row.source if may_manage else "",
        mount=row.mount,
        writable=row.writable,
        checkpoints=row.checkpoints,
        tenants=tuple(tenants[pk] for pk in row.tenants if pk in tenants),
        virtual_clusters=_names(row.vcs, vcs),
        default_for=_names(row.defaults, vcs),
        note=row.note,
        nodes=views if may_manage else (),
        usable_nodes=sum(view.usable or view.cause == ENGINE for view in views),
        total_bytes=max((view.total_bytes for view in usable), default=0),
        free_bytes=min((view.free_bytes for view in usable if view.total_bytes), default=0),
        version=row.version,
    )


def _names(ids: Iterable[int], vcs: Mapping[int, tuple[str, int]]) -> tuple[str, ...]:
    return tuple(vcs[pk][0] for pk in ids if pk in vcs)


def _node_view(node: NodeProbes, source: str) -> StorageNodeView:
    cause, probe = node.cause_of(source), node.probes.get(source, {})
    return StorageNodeView(
        node=node.name,
        usable=cause == "",
        cause="unknown" if cause is None else cause,
        total_bytes=int(probe.get("total_bytes", 0)),
        free_bytes=int(probe.get("free_bytes", 0)),
    )
