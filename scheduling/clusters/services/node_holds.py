"""Cordon and drain of nodes, declaration of dead nodes, and disabling of single devices."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.conditions import condition_rows
from scheduling.clusters.services.node_rows import (
    driver_hangs,
    node_to_edit,
    open_members_on,
    write_node,
)
from scheduling.common.edits import reason_errors
from scheduling.common.on_commit import node_has_changed, request_round_on_commit
from scheduling.core.lifecycle import PreemptionRule
from scheduling.core.messages import sentence
from scheduling.enums import NodeState
from scheduling.runs.models import CanaryRun
from scheduling.runs.services.attempts import mark_lost
from scheduling.runs.services.stopping import preempt_job
from scheduling.runs.services.tallies import tallies_written_last
from tenants.audit import Actor, record
from tenants.errors import ConflictError, FieldError, InvalidError, NotFoundError
from tenants.viewers import Viewer
from tessera.hardware import CORDON, DEFAULT_ACTIONS, Condition

DRAIN_RULE: Final = "Its node is drained"
_DRAINED: Final = Actor.system("drain")
_CONDITIONS: Final = Actor.system("conditions")
_EXPIRY: Final = Actor.system("quarantine-end")
MOST_MARK_HOURS: Final = 366 * 24


@transaction.atomic
def cordon_node(
    *,
    viewer: Viewer,
    node_id: int,
    reason: str,
    now: datetime,
    expected_version: int | None = None,
) -> Node:
    """Exclude a node from new work and end a drain; its running jobs continue.

    Raises:
        NotFoundError: the node is unknown.
        InvalidError: the reason is empty.
        StaleEditError: the node was edited since ``expected_version``.
    """
    node = node_to_edit(viewer, node_id)
    InvalidError.raise_if(reason_errors(reason))
    _hold(
        viewer=viewer,
        node=node,
        action="node.cordon",
        held=NodeState.CORDONED,
        reason=reason,
        now=now,
        expected_version=expected_version,
    )
    return node


@transaction.atomic
def uncordon_node(
    *,
    viewer: Viewer,
    node_id: int,
    now: datetime,
    reason: str = "",
    expected_version: int | None = None,
) -> Node:
    """End the cordon of a node.

    Raises:
        NotFoundError: the node is unknown.
        StaleEditError: the node was edited since ``expected_version``.
    """
    node = node_to_edit(viewer, node_id)
    if reason:
        InvalidError.raise_if(reason_errors(reason))
    values: dict[str, Any] = {"held": "", "held_reason": "", "declared_dead_at": None}
    write_node(
        actor=viewer,
        node=node,
        action="node.uncordon",
        values=values,
        now=now,
        expected_version=expected_version,
        message=reason,
    )
    return node


@transaction.atomic
def drain_node(
    *,
    viewer: Viewer,
    node_id: int,
    reason: str,
    now: datetime,
    expected_version: int | None = None,
) -> Node:
    """Drain a node: exclude it from new work, and requeue its jobs after a checkpoint.

    A node without jobs becomes cordoned at once, other nodes when their last job has left.

    Raises:
        NotFoundError: the node is unknown.
        InvalidError: the reason is empty.
        StaleEditError: the node was edited since ``expected_version``.
    """
    node = node_to_edit(viewer, node_id)
    InvalidError.raise_if(reason_errors(reason))
    # A node that is already drained would otherwise be draining again for a moment.
    is_done = node.held == NodeState.CORDONED and not open_members_on([node.pk]).exists()
    _hold(
        viewer=viewer,
        node=node,
        action="node.drain",
        held=NodeState.CORDONED if is_done else NodeState.DRAINING,
        reason=reason,
        now=now,
        expected_version=expected_version,
    )
    finish_drains(now=now, node_ids=[node.pk])
    node.refresh_from_db()
    return node


@transaction.atomic
@tallies_written_last()
def declare_node_dead(
    *,
    viewer: Viewer,
    node_id: int,
    reason: str,
    now: datetime,
    expected_version: int | None = None,
) -> Node:
    """Declare an unresponsive node dead: its jobs are lost and may run elsewhere.

    The node stays cordoned until an admin uncordons it. A responding node is refused, because its
    jobs would run twice. A node whose GPU driver hangs responds, too.

    Raises:
        NotFoundError: the node is unknown.
        InvalidError: the reason is empty.
        ConflictError: the node responds.
        StaleEditError: the node was edited since ``expected_version``.
    """
    node = node_to_edit(viewer, node_id)
    InvalidError.raise_if(reason_errors(reason))
    if node.contact == NodeState.READY:
        raise ConflictError(
            sentence("node-answers", name=node.name),
            field="contact",
            value=node.contact,
            remedy=sentence("drain-instead"),
        )
    if driver_hangs(node):
        raise ConflictError(
            sentence("only-driver-hangs", name=node.name),
            field="contact",
            value=node.contact,
            remedy=sentence("drain-and-restart"),
        )
    values: dict[str, Any] = {
        "contact": NodeState.DOWN,
        "contact_reason": f"declared dead: {reason}"[:500],
        "held": NodeState.CORDONED,
        "held_reason": f"declared dead: {reason}"[:500],
        "declared_dead_at": now,
    }
    if node.declared_dead_at is not None and node.held_reason == values["held_reason"]:
        values["declared_dead_at"] = node.declared_dead_at
    write_node(
        actor=viewer,
        node=node,
        action="node.declare_dead",
        values=values,
        now=now,
        expected_version=expected_version,
        message=reason,
    )
    # Gangs are locked in the order of their IDs, as in reports.
    members = open_members_on([node.pk]).order_by("attempt_id", "id")
    for member_id in list(members.values_list("id", flat=True)):
        mark_lost(member_id=member_id, message=sentence("declared-dead", name=node.name), now=now)
    return node


def cordon_by_conditions(*, node_id: int, conditions: Iterable[Condition], now: datetime) -> None:
    """Cordon a node with a condition whose action is ``cordon``, or end such a cordon.

    The hold of an admin is not changed.
    """
    node = Node.objects.get(pk=node_id)
    devices = list(node.devices.filter(retired_at=None))
    rows = condition_rows(conditions, devices)
    texts = [row.text for row in rows if row.action == CORDON]
    own = {sentence(f"condition-{code}") for code in DEFAULT_ACTIONS}
    is_own = node.held == NodeState.CORDONED and node.held_reason in own
    if (texts and node.held and not is_own) or (not texts and not is_own):
        return
    write_node(
        actor=_CONDITIONS,
        node=node,
        action="node.cordon" if texts else "node.uncordon",
        values={"held": NodeState.CORDONED if texts else "", "held_reason": (texts or [""])[0]},
        now=now,
    )


def finish_drains(*, now: datetime, node_ids: list[int] | None = None) -> int:
    """Advance drains: notify remaining jobs to leave, and cordon nodes without jobs.

    It is called with every round, since a round that began before the drain may have placed a job
    on the node.

    Returns:
        The number of newly cordoned nodes.
    """
    draining = Node.objects.filter(held=NodeState.DRAINING, removed_at=None)
    if node_ids is not None:
        draining = draining.filter(pk__in=node_ids)
    names = dict(draining.values_list("id", "name"))
    if not names:
        return 0
    with transaction.atomic(), tallies_written_last():
        busy = set()
        for node_id, job_id in sorted(
            set(open_members_on(list(names)).values_list("node_id", "attempt__job_id"))
        ):
            busy.add(node_id)
            preempt_job(
                job_id=job_id,
                for_job=0,
                rule=DRAIN_RULE,
                cause=PreemptionRule.DRAIN,
                by=sentence("drain-of-node", node=names[node_id]),
                now=now,
            )
        busy &= set(open_members_on(list(names)).values_list("node_id", flat=True))
        empty = [node_id for node_id in names if node_id not in busy]
        for node in Node.objects.filter(pk__in=empty, held=NodeState.DRAINING):
            write_node(
                actor=_DRAINED,
                node=node,
                action="node.drained",
                values={"held": NodeState.CORDONED},
                now=now,
            )
    return len(empty)


@transaction.atomic
def set_device_health(
    *,
    viewer: Viewer,
    node_id: int,
    index: int,
    healthy: bool,
    reason: str = "",
    hours: float | None = None,
    now: datetime,
) -> Device:
    """Quarantine one device, or return it to service; a job on it continues.

    A device in service that has a fault remains unhealthy.

    Args:
        viewer: a node manager.
        node_id: ID of the node.
        index: number of the device on the node.
        healthy: whether to return it to service.
        reason: reason of the quarantine.
        hours: duration of the quarantine; None until an admin ends it.
        now: the current time.

    Raises:
        NotFoundError: the device is unknown.
        InvalidError: a quarantine has no reason, or its duration is out of range.
    """
    node = node_to_edit(viewer, node_id)
    device = node.devices.filter(index=index, retired_at=None).first()
    if device is None:
        raise NotFoundError(
            sentence("no-such-device", name=node.name, index=index), field="index", value=index
        )
    if not healthy:
        InvalidError.raise_if([*reason_errors(reason), *_duration_errors(hours)])
    until = None if healthy or hours is None else now + timedelta(hours=hours)
    _mark(device, "" if healthy else reason.strip(), until, actor=viewer)
    return device


def end_expired_marks(*, node_id: int, now: datetime) -> None:
    """Return the devices of a node to service whose quarantine has expired."""
    expired = Device.objects.filter(node_id=node_id, disabled_until__lte=now, retired_at=None)
    for device in expired:
        _mark(device, "", None, actor=_EXPIRY)


def _duration_errors(hours: float | None) -> list[FieldError]:
    if hours is None or 0 < hours <= MOST_MARK_HOURS:
        return []
    return [
        FieldError(
            field="hours",
            value=hours,
            message=sentence("not-duration-of-mark"),
            remedy=sentence("write-duration-of-mark", most=MOST_MARK_HOURS),
        )
    ]


def _mark(device: Device, reason: str, until: datetime | None, *, actor: Viewer | Actor) -> None:
    before = _health(device)
    device.disabled_reason, device.disabled_until = reason, until
    if not reason and isinstance(actor, Viewer):
        device.canary = ""  # the admin returns the device without a test
    if reason:
        # A running test was requested before this quarantine, and must not end it.
        CanaryRun.objects.filter(device=device, ended_at=None).update(requested_by="")
    device.set_health()
    after = _health(device)
    if before == after:
        return
    columns = ["disabled_reason", "disabled_until", "canary", "healthy", "health_reason"]
    device.save(update_fields=columns)
    record(actor=actor, action="device.health", obj=device, before=before, after=after)
    node_has_changed(device.node_id)
    request_round_on_commit("device")


def _health(device: Device) -> dict[str, object]:
    found: dict[str, object] = {"healthy": device.healthy, "reason": device.health_reason}
    if device.disabled_until is not None:
        found["until"] = device.disabled_until.isoformat()
    return found


def _hold(
    *,
    viewer: Viewer,
    node: Node,
    action: str,
    held: NodeState,
    reason: str,
    now: datetime,
    expected_version: int | None,
) -> None:
    values = {"held": held, "held_reason": reason.strip()}
    write_node(
        actor=viewer,
        node=node,
        action=action,
        values=values,
        now=now,
        expected_version=expected_version,
        message=reason.strip(),
    )
