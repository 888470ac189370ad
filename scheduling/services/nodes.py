"""Nodes as an admin handles them: adding, editing, removing, and holding them back.

Whether a node answers is the business of ``services.node_contact``; what it has, of
``services.inventory``.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from scheduling.enums import NodeState
from scheduling.models import Node
from scheduling.services.edits import UNCHANGED, Unchanged, given
from scheduling.services.node_holds import (
    cordon_node,
    declare_node_dead,
    drain_node,
    finish_drains,
    set_device_health,
    uncordon_node,
)
from scheduling.services.node_networks import plain_network
from scheduling.services.node_rows import node_to_edit, open_members_on, shown, tell, write_node
from scheduling.services.node_tenants import in_rows
from scheduling.services.node_values import fingerprint_of, node_faults
from scheduling.services.removal import take_out_of_topology
from scheduling.services.topology import in_turn
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
    now: datetime,
) -> Node:
    """Store a node whose host key a person has confirmed; it is down until it answers.

    A node that an import has named and that has no address yet gets this one.

    Args:
        viewer: a cluster admin.
        name: its name for good; the address of its cell.
        host: host name or IP address.
        port: of its SSH server.
        user: the account that runs jobs.
        host_key: the public key line that the node showed.
        fingerprint: what the person confirmed (``SHA256:...``); must be that of ``host_key``.
        labels: short texts by name; ``rack`` groups the map.
        now: the instant that is written.

    Raises:
        InvalidError: one or more values are wrong, all of them named.
        DuplicateError: the name or the address is taken.
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
    }
    InvalidError.raise_if(node_faults(values))
    values["host_key"] = host_key.strip()
    try:
        return _store(viewer, values, now)
    except IntegrityError:
        raise _taken(values) from None


@transaction.atomic
def update_node(
    *,
    viewer: Viewer,
    node_id: int,
    now: datetime,
    expected_version: int | None = None,
    host: str | Unchanged = UNCHANGED,
    port: int | Unchanged = UNCHANGED,
    user: str | Unchanged = UNCHANGED,
    host_key: str | Unchanged = UNCHANGED,
    fingerprint: str | Unchanged = UNCHANGED,
    labels: Mapping[str, str] | Unchanged = UNCHANGED,
    dedicated_to: Sequence[str] | Unchanged = UNCHANGED,
    visible_paths: Sequence[Mapping[str, Any]] | Unchanged = UNCHANGED,
    job_network: str | Unchanged = UNCHANGED,
) -> Node:
    """Change how a node is reached, its labels, or whom it takes. Its name is for good.

    A new host key needs its fingerprint beside it. Jobs that run on a node that is dedicated to
    others go on.

    Args:
        viewer: a cluster admin.
        node_id: which node.
        now: the instant that is written.
        expected_version: the version that the editor saw.
        host: host name or IP address.
        port: of its SSH server.
        user: the account that runs jobs.
        host_key: the public key line that the node showed.
        fingerprint: what the person confirmed.
        labels: short texts by name.
        dedicated_to: names of the only tenants whose jobs it takes; empty: all.
        visible_paths: ``{path, writable?, tenants?}`` each; what jobs may see of the node.
        job_network: one of ``job_networks.SETTINGS``; empty: by the node's own file.

    Raises:
        NotFoundError: there is no such node.
        InvalidError: one or more values are wrong, all of them named.
        DuplicateError: another node has this address.
        StaleEditError: somebody edited it since ``expected_version``.
    """
    node = node_to_edit(viewer, node_id)
    values = given(
        host=host,
        port=port,
        user=user,
        host_key=host_key,
        host_key_fingerprint=fingerprint,
        labels=labels,
        dedicated_to=dedicated_to,
        visible_paths=visible_paths,
        job_network=job_network,
    )
    InvalidError.raise_if(node_faults(values))
    values |= in_rows(values)
    if "job_network" in values and node.inventory:
        with suppress(ProtocolError):  # of another version; the next probe brings a new one
            found = Inventory.from_json(node.inventory)
            values["plain_network"] = plain_network(found, values["job_network"])
    if "host_key" in values:
        values["host_key"] = values["host_key"].strip()
    try:
        with transaction.atomic():
            write_node(
                actor=viewer,
                node=node,
                action="node.update",
                values=values,
                now=now,
                expected_version=expected_version,
            )
    except IntegrityError:
        raise _taken({"host": node.host, "port": node.port, **values}) from None
    return node


def remove_node(
    *, viewer: Viewer, node_id: int, now: datetime, expected_version: int | None = None
) -> None:
    """Take a node out of the cluster; its row stays for the sake of history.

    Raises:
        NotFoundError: there is no such node.
        ConflictError: something runs on it.
        DoesNotFitError: its cells are promised to virtual clusters.
        StaleEditError: somebody edited it since ``expected_version``.
    """

    def remove() -> None:
        node = node_to_edit(viewer, node_id)
        require_empty(node)
        take_out_of_topology(node=node, user_id=viewer.user_id, now=now)
        values = {"removed_at": now, "host": "", "contact": NodeState.DOWN, "held": ""}
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
    tell(node)
    return node


def require_empty(node: Node) -> None:
    """Go on if no job is on ``node``.

    Raises:
        ConflictError: with the number of jobs.
    """
    jobs = set(open_members_on([node.pk]).values_list("attempt__job_id", flat=True))
    if jobs:
        raise ConflictError(
            f"{len(jobs)} {'job is' if len(jobs) == 1 else 'jobs are'} still on {node.name}.",
            field="node",
            value=node.name,
            remedy="Drain it first; if it is gone for good, declare it dead.",
        )


def _taken(values: Mapping[str, Any]) -> DuplicateError:
    name = values.get("name")
    if name is not None and Node.objects.filter(name=name, removed_at=None).exists():
        return DuplicateError(
            f"A node named {name} exists.", field="name", value=name, remedy="Use another name."
        )
    host, port = values["host"], values["port"]
    other = Node.objects.filter(host=host, port=port).values_list("name", flat=True).first()
    return DuplicateError(
        f"{other or 'Another node'} has the address {host}:{port}.",
        field="host",
        value=host,
        remedy="A machine is one node; use another address or remove that node.",
    )
