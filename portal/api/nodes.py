"""Nodes: registration with host key confirmation, cordon, drain, and removal."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body, read_changes
from portal.api.cluster_shapes import (
    NodeDetailOut,
    NodeOut,
    ReconfigurationOut,
    node_detail_out,
    node_out,
    reconfiguration_out,
)
from portal.api.documents import round_config
from portal.api.node_sharing import NODE_SHARING, NodeSharingActions
from portal.api.schema import DRY_RUN, IF_MATCH, PAGE, Op
from portal.api.views import expected_version, versioned
from scheduling.clusters.queries.nodes import list_nodes, node_detail
from scheduling.clusters.services import nodes
from scheduling.clusters.services.cluster_edits import RemoveNode
from scheduling.clusters.services.node_tenancies import reset_isolation
from scheduling.clusters.services.node_values import node_faults, read_jump_host
from scheduling.clusters.services.reconfiguration import reconfigure
from scheduling.enums import NodeState
from scheduling.rounds.services.canaries import check_device
from scheduling.runs.queries.device_failures import failures_of_node
from tenants.clock import database_now
from tenants.errors import ConflictError, InvalidError, StaleEditError
from tenants.roles import Permission
from workers.conf import client_keys, public_key
from workers.transports.base import HostKeyError, UnreachableNodeError
from workers.transports.hostkeys import fingerprint
from workers.transports.jump import JumpHost, fetch_key_through, jump_host_of

KEY_SECONDS: Final = 10.0
_STATE: Final = OpenApiParameter("state", str, description="States; repeat or use commas.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIn:
    """The SSH address of a new node; ``host_key_fingerprint`` is the confirmed fingerprint.

    ``jump_host`` (``user@host:port``) is the host through which the portal reaches the node; its
    key must be confirmed in the same way.
    """

    name: str
    host: str
    user: str
    port: int = 22
    host_key_fingerprint: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    jump_host: str = ""
    jump_host_key_fingerprint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VisiblePathIn:
    """A path of a node that jobs see; without tenants, jobs of all tenants see it."""

    path: str
    writable: bool = False
    checkpoints: bool = False
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePatch:
    """Changes to a node.

    `dedicated_to` lists the only tenants whose jobs may use the node; an empty list allows all
    tenants. `job_network` selects the network of plain jobs of one instance: `auto`, `isolated` or
    `shared`; if it is empty, the configuration file of the node applies. `data_interface` is the
    network interface of gangs on several nodes; if it is empty, a gang uses the fastest interface
    that its nodes share. `jump_host` (`user@host:port`) needs `jump_host_key_fingerprint`; an
    empty text means a direct connection. `device_cpus` and `device_memory_bytes` are the share of
    each device; null means an equal part of the node. Jobs without devices use what the shares
    leave.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    dedicated_to: tuple[str, ...] = ()
    visible_paths: tuple[VisiblePathIn, ...] = ()
    job_network: str = ""
    data_interface: str = ""
    jump_host: str = ""
    jump_host_key_fingerprint: str | None = None
    device_cpus: float | None = None
    device_memory_bytes: int | None = None


class PortalKeyOut(TypedDict):
    """A public key, as a line of ``authorized_keys``; empty before ``set_up``."""

    public_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldIn:
    """The reason of the change, shown to other users."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineIn:
    """The number of a device, the reason, and the duration; null: until `release-device`."""

    device: int
    reason: str
    hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseIn:
    """The number of a device."""

    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckIn:
    """The number of a device that is not in service."""

    device: int


class HostKeyUnknownError(ConflictError):
    """The host key is not confirmed yet; nothing was stored."""

    code = "host-key-unknown"
    title = "Confirm the node's host key"


class HostKeyMismatchError(ConflictError):
    """The host key of the node differs from the confirmed one; nothing was stored."""

    code = "host-key-mismatch"
    title = "The node presents a different host key"


class NodeUnreachableError(ConflictError):
    """No SSH server responds at the address; nothing was stored."""

    code = "node-unreachable"
    title = "The node does not respond"


class NodeViewSet(NodeSharingActions):
    """Machines that jobs run on."""

    collection = "nodes"
    operations: ClassVar = {
        "list": Op(takes=(_STATE, *PAGE), answer=NodeOut, pages=True),
        "create": Op(body=NodeIn, answer=NodeDetailOut, status=201),
        "retrieve": Op(answer=NodeDetailOut),
        "partial_update": Op(takes=(IF_MATCH,), body=NodePatch, answer=NodeDetailOut),
        "destroy": Op(takes=(DRY_RUN, IF_MATCH), status=204, also={200: ReconfigurationOut}),
        "portal_key": Op(answer=PortalKeyOut),
        "cordon": Op(takes=(IF_MATCH,), body=HoldIn, answer=NodeDetailOut),
        "uncordon": Op(takes=(IF_MATCH,), body=HoldIn, answer=NodeDetailOut),
        "drain": Op(takes=(IF_MATCH,), body=HoldIn, answer=NodeDetailOut),
        "declare_dead": Op(takes=(IF_MATCH,), body=HoldIn, answer=NodeDetailOut),
        "reset_isolation": Op(takes=(IF_MATCH,), body=HoldIn, answer=NodeDetailOut),
        "quarantine_device": Op(body=QuarantineIn, answer=NodeDetailOut),
        "release_device": Op(body=ReleaseIn, answer=NodeDetailOut),
        "check_device": Op(body=CheckIn, answer=NodeDetailOut),
        **NODE_SHARING,
    }

    def list(self, request: Request) -> Response:
        """List nodes; addresses require the right to manage nodes."""
        states = self.query.choices("state", NodeState.values)
        rows = [row for row in list_nodes(self.viewer) if not states or row.state in states]
        return self.page(self.cut(rows, lambda row: row.id), node_out)

    def create(self, request: Request) -> Response:
        """Add a node.

        Without `host_key_fingerprint` nothing is stored: the response is 409 with the fingerprint
        of the presented host key. Compare it with the key on the machine and send it.
        """
        self.viewer.require(Permission.MANAGE_NODES, what="nodes")
        wanted = read_body(NodeIn, request.data)
        InvalidError.raise_if(node_faults(_address(wanted)))
        jump = confirmed_jump_host(wanted.jump_host, wanted.jump_host_key_fingerprint)
        node = nodes.add_node(
            viewer=self.viewer,
            name=wanted.name,
            host=wanted.host,
            port=wanted.port,
            user=wanted.user,
            jump_host=jump,
            host_key=confirmed_key(
                wanted.host, wanted.port, wanted.host_key_fingerprint, jump_host_of(jump)
            ),
            fingerprint=wanted.host_key_fingerprint or "",
            labels=wanted.labels,
            now=database_now(),
        )
        return self._node(node.pk, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a node with its devices, cells and running jobs."""
        return self._node(pk)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update labels, tenants, visible paths, networks or the devices' share of a node.

        The response to a smaller share is 409 while jobs use devices of the node.
        """
        changes = read_changes(NodePatch, request.data)
        if "visible_paths" in changes:
            changes["visible_paths"] = [asdict(path) for path in changes["visible_paths"]]
        confirmed = changes.pop("jump_host_key_fingerprint", None)
        if "jump_host" in changes:
            self.viewer.require(Permission.MANAGE_NODES, what="nodes")
            changes["jump_host"] = confirmed_jump_host(changes["jump_host"], confirmed)
        nodes.update_node(
            viewer=self.viewer,
            node_id=pk,
            now=database_now(),
            expected_version=expected_version(request),
            **changes,
        )
        return self._node(pk)

    def destroy(self, request: Request, pk: int) -> Response:
        """Remove a node without jobs from the cluster.

        With `dry_run=1` nothing is written, and the response lists guarantees that would no longer
        fit (`fits: false`) and jobs that would become borrowers.
        """
        if self.query.flag("dry_run"):
            return self._try_removal(pk, expected_version(request))
        nodes.remove_node(
            viewer=self.viewer,
            node_id=pk,
            now=database_now(),
            expected_version=expected_version(request),
        )
        return Response(status=204)

    @action(detail=False, url_path="portal-key")
    def portal_key(self, request: Request) -> Response:
        """Get the public SSH key of the portal, which nodes authorize."""
        self.viewer.require(Permission.MANAGE_NODES, what="nodes")
        return Response({"public_key": public_key()})

    @action(detail=True, methods=["post"])
    def cordon(self, request: Request, pk: int) -> Response:
        """Cordon a node: no new jobs start there; running jobs continue."""
        return self._hold(nodes.cordon_node, request, pk)

    @action(detail=True, methods=["post"])
    def uncordon(self, request: Request, pk: int) -> Response:
        """Uncordon a node: new jobs may start there again."""
        return self._hold(nodes.uncordon_node, request, pk)

    @action(detail=True, methods=["post"])
    def drain(self, request: Request, pk: int) -> Response:
        """Drain a node: cordon it, and requeue its jobs after they have saved their work."""
        return self._hold(nodes.drain_node, request, pk)

    @action(detail=True, methods=["post"], url_path="declare-dead")
    def declare_dead(self, request: Request, pk: int) -> Response:
        """Declare that a node will not return, so that its jobs restart elsewhere."""
        return self._hold(nodes.declare_node_dead, request, pk)

    @action(detail=True, methods=["post"], url_path="reset-isolation")
    def reset_isolation(self, request: Request, pk: int) -> Response:
        """Release a node of isolation level `none` from its tenant, for use by another tenant.

        Clean the node first: a job may have left files, cron jobs or keys behind. Returns 409
        while a job is on the node.
        """
        return self._hold(reset_isolation, request, pk)

    @action(detail=True, methods=["post"], url_path="quarantine-device")
    def quarantine_device(self, request: Request, pk: int) -> Response:
        """Quarantine one device: no new jobs start on it; a running job continues."""
        wanted = read_body(QuarantineIn, request.data)
        nodes.set_device_health(
            viewer=self.viewer,
            node_id=pk,
            index=wanted.device,
            healthy=False,
            reason=wanted.reason,
            hours=wanted.hours,
            now=database_now(),
        )
        return self._node(pk)

    @action(detail=True, methods=["post"], url_path="release-device")
    def release_device(self, request: Request, pk: int) -> Response:
        """End the quarantine of a device; one with a fault remains unhealthy."""
        nodes.set_device_health(
            viewer=self.viewer,
            node_id=pk,
            index=read_body(ReleaseIn, request.data).device,
            healthy=True,
            now=database_now(),
        )
        return self._node(pk)

    @action(detail=True, methods=["post"], url_path="check-device")
    def check_device(self, request: Request, pk: int) -> Response:
        """Start a canary job on a device that is not in service; if it passes, the device returns.

        Returns 409 if the device is in service or in use, or cannot be tested. `canaries` of the
        node has the result.
        """
        check_device(
            viewer=self.viewer,
            node_id=pk,
            index=read_body(CheckIn, request.data).device,
            config=round_config(),
            now=database_now(),
        )
        return self._node(pk)

    def _hold(self, act: Any, request: Request, pk: int) -> Response:
        act(
            viewer=self.viewer,
            node_id=pk,
            reason=read_body(HoldIn, request.data).reason,
            now=database_now(),
            expected_version=expected_version(request),
        )
        return self._node(pk)

    def _try_removal(self, node_id: int, expected: int | None) -> Response:
        self.viewer.require(Permission.MANAGE_NODES, what="nodes")
        row = node_detail(self.viewer, node_id).row
        if expected not in (None, row.version):
            raise StaleEditError.of("node", expected)
        edits = (RemoveNode(node=row.name),)
        now = database_now()
        answer = reconfigure(viewer=self.viewer, edits=edits, now=now, dry_run=True)
        return Response(reconfiguration_out(answer))

    def _node(self, node_id: int, *, status: int = 200) -> Response:
        detail = node_detail(self.viewer, node_id)
        failures = failures_of_node(node_id, now=database_now()) if detail.can_manage else None
        shown = node_detail_out(detail, failures)
        return versioned(shown, detail.row.version, status=status)


def _address(wanted: NodeIn) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "host": wanted.host,
        "port": wanted.port,
        "user": wanted.user,
        "labels": wanted.labels,
    }


def confirmed_jump_host(text: str, confirmed: str | None) -> dict[str, Any]:
    """Return the column of a jump host ``user@host:port`` whose key a person has confirmed.

    Raises:
        InvalidError: the text is not a valid address.
        HostKeyUnknownError, HostKeyMismatchError, NodeUnreachableError: as for ``confirmed_key``.
    """
    jump = read_jump_host(text)
    if not jump:
        return {}
    line = confirmed_key(jump["host"], jump["port"], confirmed, field="jump_host")
    return {**jump, "host_key": line, "host_key_fingerprint": confirmed}


def confirmed_key(
    host: str,
    port: int,
    confirmed: str | None,
    jump: JumpHost | None = None,
    *,
    field: str = "host",
) -> str:
    """Return the current host key line of a node if a person has confirmed the key.

    Args:
        host: address of the node.
        port: port of its SSH server.
        confirmed: the fingerprint that the person confirmed, if any.
        jump: host through which the node is reached.
        field: field of the address in errors.

    Raises:
        HostKeyUnknownError: the key is not confirmed; the error contains the fingerprint.
        HostKeyMismatchError: the node presents another key than the confirmed one.
        NodeUnreachableError: the node does not respond.
    """
    try:
        line = asyncio.run(fetch_key_through(jump, client_keys(), host, port, seconds=KEY_SECONDS))
    except (HostKeyError, UnreachableNodeError) as error:
        raise NodeUnreachableError(
            f"No SSH server responds there: {error}.",
            field=field,
            value=f"{host}:{port}",
            remedy="Check that its SSH server runs and is reachable from this server.",
        ) from None
    seen = fingerprint(line)
    if confirmed == seen:
        return line
    kind = HostKeyUnknownError if not confirmed else HostKeyMismatchError
    raise kind(
        f"{host}:{port} presents the host key {seen}.",
        field=f"{'' if field == 'host' else 'jump_'}host_key_fingerprint",
        value=seen,
        remedy=(
            "Compare it with the key on the machine (ssh-keygen -l), and send exactly that key."
        ),
    )
