"""Reads and writes of a node's row for an edit: version, state, audit and event."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from scheduling.clusters.models import Node
from scheduling.common.on_commit import node_has_changed, request_round_on_commit
from scheduling.core.messages import sentence
from scheduling.enums import MemberStep, NodeState
from scheduling.notices.services.outbox import put_node_state
from scheduling.runs.models import Member
from tenants.audit import Actor, changed, record
from tenants.edits import compare_and_set, require_version
from tenants.errors import ConflictError, NotFoundError
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.viewers import Viewer

_KIND: Final = "node"
EMPTY_IT: Final = sentence("drain-or-declare-dead")
DRIVER_HANGS: Final = sentence("condition-driver-hung")
GONE: Final = (MemberStep.EXITED, MemberStep.RELEASED)


def node_to_edit(viewer: Viewer, node_id: int) -> Node:
    """Return the node for an edit by the viewer.

    Raises:
        ForbiddenError: the viewer may not manage nodes.
        NotFoundError: the node is unknown.
    """
    viewer.require(Permission.MANAGE_NODES, what="the node")
    node = Node.objects.filter(pk=node_id, removed_at=None).first()
    if node is None:
        raise NotFoundError(sentence("no-such-node"), field="id", value=node_id)
    return node


def driver_hangs(node: Node) -> bool:
    """Return whether a node is suspect because of its GPU driver, although it responds."""
    return (node.contact, node.contact_reason) == (NodeState.SUSPECT, DRIVER_HANGS)


def state_of(contact: str, held: str) -> NodeState:
    """Return the displayed state: contact problems take precedence over an admin's hold.

    ``held`` is stored separately, so a draining node continues to drain after a lost contact.
    """
    if contact != NodeState.READY:
        return NodeState(contact)
    return NodeState(held) if held else NodeState.READY


def write_node(
    *,
    actor: Viewer | Actor,
    node: Node,
    action: str,
    values: Mapping[str, Any],
    now: datetime,
    expected_version: int | None = None,
    message: str = "",
) -> None:
    """Write columns with the derived state, and record the event.

    Unchanged values, as in a repeated request, are neither written nor recorded again.

    Raises:
        StaleEditError: the node was edited since ``expected_version``.
    """
    before, after = changed({key: getattr(node, key) for key in values}, values)
    state, reason = _state_with(node, after)
    if not after and (state, reason) == (node.state, node.state_reason):
        require_version(node.version, expected_version, kind=_KIND)
        return
    columns = {**after, "state_reason": reason}
    if state != node.state:
        columns |= {"state": state, "state_since": now}
    compare_and_set(
        Node.objects.filter(removed_at=None),
        pk=node.pk,
        kind=_KIND,
        expected_version=expected_version,
        read_version=node.version,
        values=columns,
    )
    if state != node.state:
        put_node_state(node_id=node.pk, name=node.name, state=state, now=now)
    if after or message:
        record(
            actor=actor,
            action=action,
            obj=node,
            before=shown(before),
            after=shown(after),
            message=message,
        )
    node.refresh_from_db()
    signal_change(node)


def _state_with(node: Node, changes: Mapping[str, Any]) -> tuple[NodeState, str]:
    """Return the state derived from the new columns, and its reason."""
    contact = str(changes.get("contact", node.contact))
    state = state_of(contact, str(changes.get("held", node.held)))
    if contact != NodeState.READY:
        return state, str(changes.get("contact_reason", node.contact_reason))
    return state, str(changes.get("held_reason", node.held_reason))


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for the audit: tenants by name, and public keys by fingerprint."""
    found = {key: value for key, value in values.items() if key != "host_key"}
    if found.get("jump_host"):
        found["jump_host"] = {
            key: value for key, value in found["jump_host"].items() if key != "host_key"
        }
    dedicated, paths = found.get("dedicated_to", []), found.get("visible_paths", [])
    ids = {*dedicated, *(tenant for path in paths for tenant in path.get("tenants", []))}
    if not ids:
        return found
    names = dict(Tenant.objects.unscoped().filter(pk__in=ids).values_list("id", "name"))
    if dedicated:
        found["dedicated_to"] = [names[tenant] for tenant in dedicated]
    if paths:
        found["visible_paths"] = [
            {**path, "tenants": [names[tenant] for tenant in path.get("tenants", [])]}
            for path in paths
        ]
    return found


def signal_change(node: Node) -> None:
    """Send the signal of a changed node after the commit, and request a round."""
    node_has_changed(node.pk)
    request_round_on_commit("node")


def removal_values(node: Node, now: datetime) -> dict[str, Any]:
    """Return the columns of a removed node; its address becomes free."""
    return {
        "removed_at": now,
        "last_address": address_of(node),
        "host": "",
        "contact": NodeState.DOWN,
        "held": "",
    }


def address_of(node: Node) -> str:
    """Return host and port of a node; empty without an address."""
    return f"{node.host}:{node.port}" if node.host else ""


def require_empty(node: Node, remedy: str) -> None:
    """Check that no job is on ``node``, regardless of its isolation.

    Raises:
        ConflictError: jobs are on the node; the error contains their number.
    """
    jobs = set(open_members_on([node.pk]).values_list("attempt__job_id", flat=True))
    if jobs:
        raise ConflictError(
            sentence("jobs-on-node", n=len(jobs), node=node.name),
            field="node",
            value=node.name,
            remedy=remedy,
        )


def open_members_on(node_ids: list[int]) -> "QuerySet[Member]":
    """Return members that may still be on these nodes."""
    on_nodes = Member.objects.filter(node_id__in=node_ids, removed_at=None)
    return on_nodes.exclude(step__in=GONE)
