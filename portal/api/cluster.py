"""Cluster snapshots, and imports of HiveD configurations."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, TypedDict

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from portal.api.bodies import Body, From
from portal.api.cluster_shapes import CellOut, DeviceOut
from portal.api.node_sharing import CLUSTER_SHARING, ClusterSharingActions
from portal.api.schema import DRY_RUN, FaultOut, Op
from portal.api.vc_shapes import VcUseOut, vc_use_out
from portal.identity import Same
from scheduling.clusters.queries.cluster import (
    NODES_KEPT,
    ClusterView,
    NodeView,
    Totals,
    cluster_snapshot,
)
from scheduling.clusters.queries.node_isolation import state_reason_for
from scheduling.clusters.queries.shares import FreeChain
from scheduling.clusters.services.imports import ImportReport, import_hived
from scheduling.compat.hived.configuration import check_hived
from scheduling.topology.current import ChainView
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission

_OWNER: Final = OpenApiParameter(
    "owner",
    str,
    description="`virtual-cluster=tenant` for a new virtual cluster; repeat or use commas.",
)
_HIVED: Final = {
    "type": "object",
    "properties": {"physicalCluster": {"type": "object"}, "virtualClusters": {"type": "object"}},
    "description": "A HiveD configuration.",
}


class ClusterNodeOut(TypedDict):
    """A node on the map."""

    id: int
    name: str
    rack: str
    state: str
    state_reason: str
    state_since: datetime
    device_type: str
    devices: list[DeviceOut]
    cell: Annotated[CellOut, From("tree")]


class ChainLevelOut(TypedDict):
    """One level of a chain, counted from the device."""

    level: str
    type: str
    number: int
    devices: int
    cells: int


class ChainOut(TypedDict):
    """All cells whose top cell has one type."""

    name: str
    device_type: str
    devices: int
    node_level: int
    levels: list[ChainLevelOut]


class FreeLevelOut(TypedDict):
    """Free cells of one level that are not part of a larger free cell."""

    level: str
    type: str
    devices: int
    cells: int


class FreeOut(TypedDict):
    """Free cells of one chain."""

    chain: str
    device_type: str
    idle: int
    largest_cell: int
    largest_cell_level: str
    largest_in_node: int
    nodes_with_idle: int
    nodes_whole: int
    levels: list[FreeLevelOut]


class TotalsOut(TypedDict):
    """Totals of the overview; job counts and waits cover jobs that you may see.

    `cordoned`: healthy and idle devices on nodes that an admin has cordoned or drains.
    """

    devices: int
    healthy: int
    cordoned: int
    in_use: int
    borrowed: int
    gpus: int
    jobs: dict[str, int]
    median_wait_seconds: float | None
    p90_wait_seconds: float | None


class ClusterOut(TypedDict):
    """A snapshot; ``version`` is the topology version and the round number, joined by a dot."""

    version: str
    topology_version: int
    round: int
    at: datetime
    nodes: list[ClusterNodeOut]
    virtual_clusters: list[VcUseOut]
    chains: list[ChainOut]
    free: list[FreeOut]
    unassigned: dict[str, int]
    totals: TotalsOut


def _conflicts(report: ImportReport) -> list[dict[str, Any]]:
    return [{**fault.as_dict(), "code": fault.code} for fault in report.conflicts]


class UnsupportedOut(TypedDict):
    """An element of an imported document without a counterpart in Tessera."""

    field: str
    value: str
    message: str
    needed: bool


class ImportReportOut(TypedDict):
    """The report of an import."""

    dry_run: bool
    version: int
    cell_types_added: list[str]
    cell_types_changed: list[str]
    cell_types_removed: list[str]
    nodes_created: list[str]
    nodes_removed: list[str]
    nodes_without_host: list[str]
    devices_added: int
    devices_removed: int
    tenants_created: list[str]
    virtual_clusters_created: list[str]
    virtual_clusters_changed: list[str]
    virtual_clusters_archived: list[str]
    virtual_clusters_emptied: list[str]
    warnings: list[str]
    conflicts: Annotated[list[FaultOut], From(by=_conflicts)]


class ClusterImportOut(ImportReportOut):
    """The result of an import or dry run.

    `conflicts` of a dry run are the errors of the 409 that the import itself would return now.
    """

    spec: Any
    unsupported: list[UnsupportedOut]


class ClusterViewSet(ClusterSharingActions):
    collection = "cluster"
    operations: ClassVar = {
        "list": Op(answer=ClusterOut),
        "import_configuration": Op(takes=(DRY_RUN, _OWNER), body=_HIVED, answer=ClusterImportOut),
        **CLUSTER_SHARING,
    }

    def list(self, request: Request) -> Response | HttpResponse:
        """Get a snapshot of nodes, devices and virtual clusters.

        If the `ETag` in `If-None-Match` is current, the response is 304 without a body.
        """
        view = cluster_snapshot(self.viewer, now=database_now())
        tag, body = cluster_text(view, may_manage=self.viewer.can(Permission.MANAGE_NODES))
        if request.headers.get("If-None-Match") == tag:
            return Response(status=304, headers={"ETag": tag})
        return HttpResponse(body, content_type="application/json", headers={"ETag": tag})

    @action(detail=False, methods=["post"], url_path="import")
    def import_configuration(self, request: Request) -> Response:
        """Import a HiveD configuration of the cluster; on any error nothing is changed.

        With `dry_run=1` nothing is written, and `conflicts` names jobs on devices that would
        be removed. Without it, such jobs cause 409 `devices-in-use`.
        """
        self.viewer.require(Permission.MANAGE_NODES, what="the cluster")
        read = check_hived(request.data)
        report = import_hived(
            viewer=self.viewer,
            document=read.spec,
            now=database_now(),
            dry_run=self.query.flag("dry_run"),
            warnings=[remark.sentence for remark in read.warnings],
            owners=_owners(self.query.many("owner")),
        )
        unsupported: list[Any] = [entry.to_json() for entry in read.unsupported]
        return Response(import_out(report, read.spec, unsupported))


def cluster_text(view: ClusterView, *, may_manage: bool) -> tuple[str, str]:
    """Return the ``ETag`` of a snapshot and its JSON; the ``ETag`` ignores the time.

    The JSON of a node is cached until the node changes.

    Args:
        view: the snapshot.
        may_manage: whether the JSON includes the SSH addresses of nodes.
    """
    nodes = ",".join(_node_text(Same(node), may_manage) for node in view.nodes)
    rest = _json(
        {
            "version": view.version,
            "topology_version": view.topology_version,
            "round": view.round_number,
            "virtual_clusters": [vc_use_out(use) for use in view.virtual_clusters],
            "chains": [_chain_out(chain) for chain in view.chains],
            "free": [_free_out(free) for free in view.free],
            "unassigned": dict(view.unassigned),
            "totals": _totals_out(view.totals),
        }
    )
    lasting = f'{rest[:-1]},"nodes":[{nodes}]'
    digest = hashlib.sha256(lasting.encode()).hexdigest()[:16]
    return f'"{view.version}-{digest}"', f'{lasting},"at":{_json(view.at)}}}'


@lru_cache(maxsize=NODES_KEPT)
def _node_text(node: Same[NodeView], may_manage: bool) -> str:
    return _json(_node_out(node.value, may_manage=may_manage))


def _json(value: object) -> str:
    text = json.dumps(
        value, cls=JSONEncoder, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    # JavaScript treats these characters as line ends; JSON does not.
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def import_out(
    report: ImportReport, spec: Mapping[str, Any], unsupported: list[Any]
) -> ClusterImportOut:
    return {**_report_out(report), "spec": dict(spec), "unsupported": unsupported}


def _owners(given: frozenset[str]) -> dict[str, str]:
    pairs = [entry.partition("=") for entry in sorted(given)]
    InvalidError.raise_if(
        InvalidError(
            "This does not name an owner.",
            field="owner",
            value=name + equals,
            remedy="Write virtual-cluster=tenant.",
        ).errors[0]
        for name, equals, tenant in pairs
        if not (name and tenant)
    )
    return {name.strip(): tenant.strip() for name, _, tenant in pairs}


def _node_out(node: NodeView, *, may_manage: bool) -> ClusterNodeOut:
    reason = state_reason_for(node.state, node.state_reason, may_manage=may_manage)
    return {**_map_node_out(node), "state_reason": reason}


_map_node_out = Body(ClusterNodeOut, NodeView)
_chain_out = Body(ChainOut, ChainView)
_free_out = Body(FreeOut, FreeChain)
_totals_out = Body(TotalsOut, Totals)
_report_out = Body(ImportReportOut, ImportReport)
