"""Several edits of the cluster in one request: all of them or none, and a dry run of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.nodes import confirmed_key
from portal.api.reconfiguration_shapes import ReconfigurationOut, reconfiguration_out
from portal.api.request_models import read_body
from portal.api.schema import DRY_RUN, Op
from portal.api.vc_shapes import CellsIn, PinIn, VcIn, creation_of
from portal.api.views import ApiViewSet
from scheduling.clusters.services import cluster_edits as edits
from scheduling.clusters.services.node_values import node_faults
from scheduling.clusters.services.reconfiguration import reconfigure
from tenants.clock import database_now
from tenants.errors import DomainError, FieldError, InvalidError
from tenants.roles import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconfigureIn:
    """`edits` in order, each with its `op`; `expected_version` is the topology's as you saw it."""

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
    """A node to be added; its host key must have been confirmed by a person."""

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
    "description": "Edits in order; promises need to fit only after the last of them.",
}


class ReconfigurationViewSet(ApiViewSet):
    """Live reconfiguration."""

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
            # Before the node is asked for its key: nobody else may cause connections of the
            # server.
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
