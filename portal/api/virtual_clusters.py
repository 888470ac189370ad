"""Virtual clusters: their guarantees, policies and caps, and edits of several in one step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body, read_changes
from portal.api.cluster_shapes import ReconfigurationOut, reconfiguration_out
from portal.api.nodes import confirmed_key
from portal.api.rounds import SINCE, ShadowTotalsOut, shadow_total_out
from portal.api.schema import DRY_RUN, IF_MATCH, PAGE, Op
from portal.api.vc_shapes import (
    CellsIn,
    PinIn,
    VcCellsOut,
    VcDetailOut,
    VcIn,
    VcOut,
    VcPatch,
    creation_of,
    vc_cells_out,
    vc_detail_out,
    vc_out,
)
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.clusters.queries.recommendations import recommended_shape
from scheduling.clusters.queries.vc_cells import VcRoom, virtual_cluster_room
from scheduling.clusters.queries.virtual_clusters import (
    asked_vc,
    detail_of,
    list_virtual_clusters,
    virtual_cluster_for,
)
from scheduling.clusters.services import cluster_edits as edits
from scheduling.clusters.services.cluster_edits import ArchiveVc, ChangeVc, VcEdit
from scheduling.clusters.services.node_values import node_faults
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster, reconfigure
from scheduling.watching.queries import idle_rule_of
from scheduling.watching.services.idling import set_idle_rule
from scheduling.what_if.queries import shadow_totals
from tenants.clock import database_now
from tenants.errors import DomainError, FieldError, InvalidError
from tenants.roles import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicyIn:
    """An idle policy in percent and seconds; if ``stop_after`` is null, jobs are only warned."""

    below: float = 5.0
    warn_after: int = 1800
    stop_after: int | None = 3600
    exempt_priorities: tuple[str, ...] = ()
    binding: bool = False
    devices: str = "all"


class IdlePolicyOut(TypedDict):
    """The idle policy; null if idle jobs cause no action."""

    idle_policy: Any


class VirtualClusterViewSet(ApiViewSet):
    collection = "virtual-clusters"
    operations: ClassVar = {
        "list": Op(
            takes=(OpenApiParameter("tenant", str, description="Name."), *PAGE),
            answer=VcOut,
            pages=True,
        ),
        "create": Op(
            takes=(DRY_RUN,),
            body=VcIn,
            answer=VcDetailOut,
            status=201,
            also={200: ReconfigurationOut},
        ),
        "retrieve": Op(answer=VcDetailOut),
        "partial_update": Op(
            takes=(DRY_RUN, IF_MATCH), body=VcPatch, answer=VcDetailOut | ReconfigurationOut
        ),
        "destroy": Op(takes=(DRY_RUN, IF_MATCH), status=204, also={200: ReconfigurationOut}),
        "cells": Op(answer=VcCellsOut),
        "idle_policy": Op(answer=IdlePolicyOut),
        "set_idle_policy": Op(body=IdlePolicyIn, answer=IdlePolicyOut),
        "clear_idle_policy": Op(status=204),
        "shadows": Op(takes=(SINCE,), answer=ShadowTotalsOut),
    }

    def list(self, request: Request) -> Response:
        """List virtual clusters of your tenants with their use."""
        tenant = self.query.text("tenant")
        rows = [
            row for row in list_virtual_clusters(self.viewer) if tenant in ("", row.use.tenant)
        ]
        return self.page(self.cut(rows, lambda row: row.use.id), vc_out)

    def create(self, request: Request) -> Response:
        """Create a virtual cluster; 409 if its guarantee does not fit.

        With `dry_run=1` nothing is written, and the response shows the result.
        """
        edit = creation_of(read_body(VcIn, request.data))
        return self._edited(edit) or self._detail(edit.name, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a virtual cluster: its guarantee, fitting job sizes, and use by person."""
        return self._detail(pk)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update guarantee, policy or caps; running jobs continue.

        With `dry_run=1` nothing is written, and the response lists jobs that would become
        borrowers.
        """
        changes = read_changes(VcPatch, request.data)
        edit = ChangeVc(
            virtual_cluster=virtual_cluster_for(self.viewer, pk).name,
            cells=changes.pop("cells", None),
            pinned=changes.pop("pinned", None),
            values=changes,
        )
        return self._edited(edit, expected_version(request)) or self._detail(pk)

    def destroy(self, request: Request, pk: int) -> Response:
        """Archive a virtual cluster without live jobs; its guarantee becomes free."""
        edit = ArchiveVc(virtual_cluster=virtual_cluster_for(self.viewer, pk).name)
        return self._edited(edit, expected_version(request)) or Response(status=204)

    @action(detail=True, methods=["get"])
    def cells(self, request: Request, pk: int) -> Response:
        """List virtual cells with their bound physical cells and the jobs on them."""
        return Response(vc_cells_out(virtual_cluster_room(self.viewer, pk).cells))

    @action(detail=True, methods=["get"])
    def shadows(self, request: Request, pk: int) -> Response:
        """List shadow policies of a virtual cluster, with totals over their decided rounds."""
        totals = shadow_totals(self.viewer, pk, since=self.query.moment("since"))
        return Response({"shadows": [shadow_total_out(total) for total in totals]})

    @action(detail=True, methods=["get"], url_path="idle-policy")
    def idle_policy(self, request: Request, pk: int) -> Response:
        """Get the idle policy for jobs without their own."""
        return self._idle_policy(pk)

    @idle_policy.mapping.put
    def set_idle_policy(self, request: Request, pk: int) -> Response:
        """Set the idle policy for jobs without their own."""
        vc, _ = idle_rule_of(self.viewer, pk)
        given = read_changes(IdlePolicyIn, request.data)
        set_idle_rule(viewer=self.viewer, virtual_cluster=vc, rule=given)
        return self._idle_policy(pk)

    @idle_policy.mapping.delete
    def clear_idle_policy(self, request: Request, pk: int) -> Response:
        """Delete the idle policy: jobs without their own are neither warned nor stopped."""
        vc, _ = idle_rule_of(self.viewer, pk)
        set_idle_rule(viewer=self.viewer, virtual_cluster=vc, rule=None)
        return Response(status=204)

    def _idle_policy(self, pk: int) -> Response:
        _, rule = idle_rule_of(self.viewer, pk)
        return Response({"idle_policy": rule or None})

    def _detail(self, key: int | str, *, status: int = 200) -> Response:
        asked = asked_vc(self.viewer, key)
        detail = detail_of(asked)
        shape = recommended_shape(
            asked.vc.pk, detail.shape, now=database_now(), topology=asked.topology
        )
        body = vc_detail_out(detail, VcRoom(asked), shape)
        return versioned(body, detail.version, status=status)

    def _edited(self, edit: VcEdit, seen: int | None = None) -> Response | None:
        """Apply ``edit`` and return None, or return a preview if the request has ``dry_run=1``."""
        tried = edit_virtual_cluster(
            viewer=self.viewer,
            edit=edit,
            now=database_now(),
            dry_run=self.query.flag("dry_run"),
            expected_version=seen,
        )
        return Response(reconfiguration_out(tried)) if tried else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconfigureIn:
    """`edits` in order, each with its `op`; `expected_version` of the topology as you read it."""

    edits: tuple[Mapping[str, Any], ...]
    expected_version: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeIn:
    """The new guarantee of a virtual cluster; omitted fields are unchanged."""

    virtual_cluster: str
    cells: tuple[CellsIn, ...] | None = None
    pinned: tuple[PinIn, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIn:
    """A new node; a person must have confirmed its host key."""

    name: str
    host: str
    user: str
    host_key_fingerprint: str
    port: int = 22
    labels: Mapping[str, str] = field(default_factory=dict)


def _change(body: ChangeIn) -> edits.ChangeVc:
    return edits.ChangeVc(
        virtual_cluster=body.virtual_cluster, cells=body.cells, pinned=body.pinned
    )


def _node(body: NodeIn) -> edits.AddNode:
    values = {"name": body.name, "host": body.host, "port": body.port, "user": body.user}
    InvalidError.raise_if(node_faults({**values, "labels": body.labels}))
    return edits.AddNode(
        name=body.name,
        host=body.host,
        port=body.port,
        user=body.user,
        host_key=confirmed_key(body.host, body.port, body.host_key_fingerprint),
        fingerprint=body.host_key_fingerprint,
        labels=body.labels,
    )


def _as_it_is(body: Any) -> Any:
    return body


OPS: Final[Mapping[str, tuple[type[Any], Callable[[Any], edits.Edit]]]] = {
    "move_quota": (edits.MoveQuota, _as_it_is),
    "change": (ChangeIn, _change),
    "pin": (edits.Pin, _as_it_is),
    "unpin": (edits.Unpin, _as_it_is),
    "create": (VcIn, creation_of),
    "archive": (edits.ArchiveVc, _as_it_is),
    "add_node": (NodeIn, _node),
    "remove_node": (edits.RemoveNode, _as_it_is),
    "cordon_node": (edits.CordonNode, _as_it_is),
    "uncordon_node": (edits.UncordonNode, _as_it_is),
}
_BODY: Final = {
    "type": "object",
    "properties": {
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"op": {"type": "string", "enum": list(OPS)}},
                "required": ["op"],
            },
        },
        "expected_version": {"type": ["integer", "null"]},
        "reason": {"type": "string"},
    },
    "required": ["edits"],
    "description": "Edits in order; guarantees must fit only after the last edit.",
}


class ReconfigurationViewSet(ApiViewSet):
    collection = "cluster"
    operations: ClassVar = {
        "reconfigure": Op(takes=(DRY_RUN,), body=_BODY, answer=ReconfigurationOut)
    }

    def reconfigure(self, request: Request) -> Response:
        """Change guarantees, pinned cells and nodes in one step while jobs run.

        All edits are applied, or none. With `dry_run=1` nothing is written, and guarantees that do
        not fit return `fits: false` with `witnesses` instead of 409 `does-not-fit`. The second
        of two requests with the same `expected_version` gets 412 `stale-edit`.
        """
        self.viewer.require(Permission.EDIT_VC, what="virtual clusters")
        wanted = read_body(ReconfigureIn, request.data)
        answer = reconfigure(
            viewer=self.viewer,
            edits=[self._edit(number, entry) for number, entry in enumerate(wanted.edits)],
            now=database_now(),
            dry_run=self.query.flag("dry_run"),
            expected_version=wanted.expected_version,
            reason=wanted.reason,
        )
        return Response(reconfiguration_out(answer))

    def _edit(self, number: int, entry: Mapping[str, Any]) -> edits.Edit:
        op = entry.get("op")
        if not isinstance(op, str) or op not in OPS:
            raise InvalidError(
                "This is not a valid edit.",
                field=f"edits[{number}].op",
                value=op,
                remedy=f"Use one of: {', '.join(OPS)}.",
            )
        if op == "add_node":
            # Check the right before the server connects to the node: other users must not cause
            # connections.
            self.viewer.require(Permission.MANAGE_NODES, what="nodes")
        shape, edit_of = OPS[op]
        rest = {key: value for key, value in entry.items() if key != "op"}
        try:
            return edit_of(read_body(shape, rest))
        except DomainError as error:
            raise type(error)(errors=_numbered(error, number)) from None


def _numbered(error: DomainError, number: int) -> list[FieldError]:
    return [
        replace(fault, field=f"edits[{number}]{'.' if fault.field else ''}{fault.field}")
        for fault in error.errors
    ]
