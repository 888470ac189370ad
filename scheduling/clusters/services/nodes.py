"""Administration of nodes: add, edit and remove.

``services.node_contact`` handles contact, and ``services.inventory`` devices.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from typing import Any, TypedDict, Unpack

from django.db import IntegrityError, transaction

from scheduling.clusters.models import Node
from scheduling.clusters.services.inventory import apply_device_share
from scheduling.clusters.services.node_contact import plain_network
from scheduling.clusters.services.node_groups import follow_labels
from scheduling.clusters.services.node_holds import (
    cordon_node,
    declare_node_dead,
    drain_node,
    finish_drains,
    set_device_health,
    uncordon_node,
)
from scheduling.clusters.services.node_removal import take_out_of_topology
from scheduling.clusters.services.node_rows import (
    EMPTY_IT,
    node_to_edit,
    open_members_on,
    removal_values,
    require_empty,
    shown,
    signal_change,
    write_node,
)
from scheduling.clusters.services.node_tenancies import keep_tenancy
from scheduling.clusters.services.node_values import fingerprint_of, in_rows, node_faults
from scheduling.clusters.services.topology import in_turn, require_places
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.messages import sentence
from scheduling.enums import NodeState
from tenants.audit import record
from tenants.errors import ConflictError, DuplicateError, InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.inventory import Inventory
from tessera.wire import ProtocolError

__all__ = [
    "add_node",
    "cordon_node",
    "declare_node_dead",
    "drain_node",
    "fingerprint_of",
    "finish_drains",
    "remove_node",
    "set_device_health",
    "uncordon_node",
    "update_node",
]


def add_node(
    *,
    viewer: Viewer,
    name: str,
    host: str,
    port: int = 22,
    user: str,
    host_key: str,
    fingerprint: str,
    labels: Mapping[str, str] | None = None,
    jump_host: Mapping[str, Any] | None = None,
    now: datetime,
) -> Node:
    """Store a node whose host key a person has confirmed; it is down until the first contact.

    A node from an import that has no address yet gets this address. A host that was removed during
    the tenancy of a tenant still belongs to it.

    Args:
        viewer: a cluster admin.
        name: permanent name of the node, which is also the address of its cell.
        host: host name or IP address.
        port: port of its SSH server.
        user: the account that runs jobs.
        host_key: public key line of the node.
        fingerprint: fingerprint that a person confirmed (``SHA256:...``); must match ``host_key``.
        labels: short texts by name; ``rack`` and ``pool`` are groups for ``within`` of jobs.
        jump_host: host, port, user, host_key and host_key_fingerprint of the host through which
            the node is reached; None for a direct connection.
        now: time to store.

    Raises:
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: another node has the name or the address.
    """
    viewer.require(Permission.MANAGE_NODES, what="nodes")
    values = {
        "name": name,
        "host": host,
        "port": port,
        "user": user,
        "host_key": host_key,
        "host_key_fingerprint": fingerprint,
        "labels": {} if labels is None else labels,
        "jump_host": dict(jump_host or {}),
    }
    InvalidError.raise_if(node_faults(values))
    values["host_key"] = host_key.strip()
    try:
        return _store(viewer, values, now)
    except IntegrityError:
        raise _taken(values) from None


class NodeChanges(TypedDict, total=False):
    """Columns that ``update_node`` may change; the name is permanent.

    Attributes:
        host: host name or IP address.
        port: port of its SSH server.
        user: the account that runs jobs.
        host_key: public key line of the node; requires its fingerprint.
        fingerprint: fingerprint that a person confirmed.
        labels: short texts by name.
        dedicated_to: names of the only tenants whose jobs may use the node; empty for all.
        visible_paths: paths that jobs may use, each ``{path, writable?, tenants?}``.
        job_network: one of ``job_networks.SETTINGS``; if empty, the configuration file of the node
            applies.
        data_interface: network interface for traffic between the members of a gang; if empty, the
            fastest interface that the nodes of the gang share.
        jump_host: as for ``add_node``; empty for a direct connection.
        device_cpus: CPUs of each device; None for an equal part of the node. Jobs without devices
            use what the devices leave.
        device_memory_bytes: bytes of memory of each device; likewise.
    """

    host: str
    port: int
    user: str
    host_key: str
    fingerprint: str
    labels: Mapping[str, str]
    dedicated_to: Sequence[str]
    visible_paths: Sequence[Mapping[str, Any]]
    job_network: str
    data_interface: str
    jump_host: Mapping[str, Any]
    device_cpus: float | None
    device_memory_bytes: int | None


def update_node(
    *,
    viewer: Viewer,
    node_id: int,
    now: datetime,
    expected_version: int | None = None,
    **changes: Unpack[NodeChanges],
) -> Node:
    """Change address, labels, tenants or paths of a node; running jobs continue.

    Raises:
        NotFoundError: the node is unknown.
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: another node has this address.
        DoesNotFitError: a guarantee would not fit any more after the dedication; nothing was
            written.
        ConflictError: jobs use the share of devices that would get less.
        StaleEditError: the node was edited since ``expected_version``.
    """
    values = _checked(changes)

    def update() -> Node:
        node = node_to_edit(viewer, node_id)
        _require_unused_share(node, values)
        gets_share = any(values.get(k, v) != v for k, v in _share_of(node).items())
        with _dedicated(viewer, node, values, now):
            write_node(
                actor=viewer,
                node=node,
                action="node.update",
                values=values | _network_of(node, values),
                now=now,
                expected_version=expected_version,
            )
        if {"host", "port", "host_key"} & values.keys():
            keep_tenancy(viewer=viewer, node=node, now=now)
        if "labels" in values:
            follow_labels(user_id=viewer.user_id, now=now)
        if gets_share:
            apply_device_share(node, now)
            request_round_on_commit("device-share")
        return node

    node_to_edit(viewer, node_id)
    InvalidError.raise_if(node_faults(values))
    values |= in_rows(values)
    try:
        return in_turn(update)
    except IntegrityError:
        node = node_to_edit(viewer, node_id)
        raise _taken({"host": node.host, "port": node.port, **values}) from None


def _share_of(node: Node) -> dict[str, float | None]:
    """Return the columns of the share of each device."""
    return {"device_cpus": node.device_cpus, "device_memory_bytes": node.device_memory_bytes}


def _require_unused_share(node: Node, values: Mapping[str, Any]) -> None:
    """Check that no job uses devices whose share becomes smaller.

    The limits of running jobs do not change, so the node would have too little for all.
    """
    is_lower = any(
        values.get(name) is not None and (before is None or values[name] < before)
        for name, before in _share_of(node).items()
    )
    users = open_members_on([node.pk]).exclude(devices=[]) if is_lower else None
    jobs = set() if users is None else set(users.values_list("attempt__job_id", flat=True))
    if jobs:
        raise ConflictError(
            sentence("jobs-use-share", n=len(jobs), node=node.name),
            field="node",
            value=node.name,
            remedy=EMPTY_IT,
        )


def _checked(changes: NodeChanges) -> dict[str, Any]:
    """Return the validated changes by column."""
    values: dict[str, Any] = dict(changes)
    if "fingerprint" in values:
        values["host_key_fingerprint"] = values.pop("fingerprint")
    if isinstance(values.get("host_key"), str):
        values["host_key"] = values["host_key"].strip()
    return values


def _network_of(node: Node, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the network of plain jobs that results from a setting, for a probed node."""
    if "job_network" in values and node.inventory:
        with suppress(ProtocolError):  # of another version; the next probe replaces the inventory
            found = Inventory.from_json(node.inventory)
            return {"plain_network": plain_network(found, values["job_network"])}
    return {}


def _dedicated(
    viewer: Viewer, node: Node, values: Mapping[str, Any], now: datetime
) -> AbstractContextManager[None]:
    """Return a context that checks the guarantees if the tenants of a node change."""
    if values.get("dedicated_to", node.dedicated_to) == node.dedicated_to:
        return nullcontext()
    reason = f"tenants of {node.name}"
    return require_places(field="dedicated_to", reason=reason, user_id=viewer.user_id, now=now)


def remove_node(
    *, viewer: Viewer, node_id: int, now: datetime, expected_version: int | None = None
) -> None:
    """Remove a node from the cluster; its row remains as history.

    Raises:
        NotFoundError: the node is unknown.
        ConflictError: jobs are on the node.
        DoesNotFitError: a guarantee needs its cells.
        StaleEditError: the node was edited since ``expected_version``.
    """

    def remove() -> None:
        node = node_to_edit(viewer, node_id)
        require_empty(node, EMPTY_IT)
        take_out_of_topology(node=node, user_id=viewer.user_id, now=now)
        values = removal_values(node, now)
        write_node(
            actor=viewer,
            node=node,
            action="node.remove",
            values=values,
            now=now,
            expected_version=expected_version,
        )

    in_turn(remove)


@transaction.atomic
def _store(viewer: Viewer, values: dict[str, Any], now: datetime) -> Node:
    imported = Node.objects.filter(name=values["name"], host="", removed_at=None).first()
    if imported is not None:
        write_node(actor=viewer, node=imported, action="node.add", values=values, now=now)
        keep_tenancy(viewer=viewer, node=imported, now=now)
        in_turn(lambda: follow_labels(user_id=viewer.user_id, now=now))
        return imported
    node = Node.objects.create(
        **values,
        state=NodeState.DOWN,
        contact=NodeState.DOWN,
        state_reason="not contacted yet",
        contact_reason="not contacted yet",
        state_since=now,
        created_at=now,
    )
    record(actor=viewer, action="node.add", obj=node, after=shown(values))
    keep_tenancy(viewer=viewer, node=node, now=now)
    signal_change(node)
    return node


def _taken(values: Mapping[str, Any]) -> DuplicateError:
    name = values.get("name")
    if name is not None and Node.objects.filter(name=name, removed_at=None).exists():
        return DuplicateError(
            sentence("node-exists", name=name),
            field="name",
            value=name,
            remedy=sentence("use-another-name"),
        )
    host, port = values["host"], values["port"]
    other = Node.objects.filter(host=host, port=port).values_list("name", flat=True).first()
    return DuplicateError(
        sentence("address-in-use", node=other or "Another node", host=host, port=port),
        field="host",
        value=host,
        remedy=sentence("use-other-address"),
    )
