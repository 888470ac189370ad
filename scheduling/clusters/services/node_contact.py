"""Contact with nodes (lost and restored), their probes, and the networks of their jobs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from scheduling.clusters.models import Device, Node
from scheduling.clusters.models.nodes import PLAIN_LEVELS
from scheduling.clusters.services.inventory import apply_inventory
from scheduling.clusters.services.node_holds import cordon_by_conditions, end_expired_marks
from scheduling.clusters.services.node_rows import DRIVER_HANGS, driver_hangs, state_of
from scheduling.common.on_commit import node_has_changed, request_round_on_commit
from scheduling.core.lifecycle import JobEventKind, JobState
from scheduling.enums import MemberStep, NodeState
from scheduling.jobs.services.lifecycle import Note, try_job_event
from scheduling.notices.services.outbox import put_node_state
from scheduling.runs.models import Attempt
from scheduling.topology.current import current_topology
from tessera.hardware import DRIVER_HUNG
from tessera.inventory import Inventory
from tessera.isolation import NONE, OWN_NETWORK, SHARED_NETWORK, IsolationProbe, best_available
from tessera.job_networks import AUTO, SHARED, network_for


def plain_network(found: Inventory, setting: str) -> str:
    """Return the network of plain jobs of one instance; empty before the first probe.

    Args:
        found: inventory of the node.
        setting: setting of the node's row; if empty, the configuration file of the node applies.
    """
    if not found.isolation or not found.networks:
        return ""
    if best_available(found.isolation, of=tuple(PLAIN_LEVELS)) == NONE:
        return SHARED
    return network_for(setting or found.job_network or AUTO, found.networks)


def container_network(found: Inventory) -> str:
    """Return the network of containers of one instance; empty without a container engine."""
    if not found.docker:
        return ""
    return OWN_NETWORK if found.firewall else SHARED_NETWORK


_SILENT: Final = "its node has not responded for a while"


@transaction.atomic
def contact_lost(*, node_id: int, reason: str, now: datetime, down: bool = False) -> None:
    """Mark a node as without contact; its running jobs become suspect and continue.

    Args:
        node_id: ID of the node.
        reason: a sentence for node managers; it may contain addresses, so jobs get another text.
        now: time to store.
        down: whether the contact has been lost for long enough to count as down.
    """
    contact = NodeState.DOWN if down else NodeState.SUSPECT
    if _set_contact(node_id, contact, reason, now):
        _move_jobs(node_id, JobState.RUNNING, JobEventKind.CONTACT_LOST, _SILENT, now)


@transaction.atomic
def contacts_back(*, boot_ids: Mapping[int, str], now: datetime) -> None:
    """Record that nodes respond to their service.

    After a change of the service, most of them were in contact all the time. These take two
    statements in all.

    Args:
        boot_ids: the boot ID of each node, by its id.
        now: the current time.
    """
    ready = Node.objects.filter(
        pk__in=list(boot_ids), removed_at=None, contact=NodeState.READY, contact_reason=""
    )
    known = dict(ready.values_list("pk", "boot_id"))
    unchanged = [pk for pk, boot_id in known.items() if boot_id == boot_ids[pk]]
    ready.filter(pk__in=unchanged).update(last_contact_at=now)
    for node_id in sorted(boot_ids.keys() - set(unchanged)):
        contact_back(node_id=node_id, boot_id=boot_ids[node_id], now=now)


@transaction.atomic
def contact_back(*, node_id: int, boot_id: str, now: datetime) -> None:
    """Record that a node responds again; jobs whose nodes all respond are running again."""
    Node.objects.filter(pk=node_id).update(last_contact_at=now, boot_id=boot_id)
    if _set_contact(node_id, NodeState.READY, "", now):
        _move_jobs(node_id, JobState.SUSPECT, JobEventKind.CONTACT_BACK, "", now)


@transaction.atomic
def record_probe(
    *,
    node_id: int,
    inventory: Mapping[str, Any],
    has_docker: bool,
    cpus: float,
    memory_bytes: int,
    now: datetime,
) -> None:
    """Store a node's inventory, and update devices and cells if it has changed.

    Raises:
        ProtocolError: the inventory is not valid.
        StaleEditError: concurrent edits changed the topology at every try; the next probe retries.
    """
    node = Node.objects.get(pk=node_id)
    Node.objects.filter(pk=node_id).update(probed_at=now, last_contact_at=now)
    _follow_driver(node, inventory, now)
    end_expired_marks(node_id=node_id, now=now)
    if node.inventory == dict(inventory):
        return
    found = Inventory.from_json(inventory)
    apply_inventory(node_id=node_id, inventory=found, now=now)
    Node.objects.filter(pk=node_id).update(
        inventory=dict(inventory),
        has_docker=has_docker,
        cpus=cpus,
        memory_bytes=memory_bytes,
        isolation=[probe.to_json() for probe in found.isolation],
        isolation_level=plain_level(found.isolation),
        plain_network=plain_network(found, node.job_network),
        container_network=container_network(found),
        has_rdma=bool(found.infiniband),
        driver_version=found.driver,
        cuda_version=found.cuda,
        gpu_memory_bytes=least_gpu_memory(inventory),
        type_memory=memory_by_type(node_id, found),
        nvlink_types=nvlink_types(node_id, found),
        enforces_limits=bool(found.cgroups)
        and not (found.devices and all(device.declared for device in found.devices)),
    )
    cordon_by_conditions(node_id=node_id, conditions=found.conditions, now=now)
    node_has_changed(node_id)
    request_round_on_commit("probe")


def least_gpu_memory(inventory: Mapping[str, Any]) -> int:
    """Return the bytes of memory of the smallest GPU in an inventory; 0 if one is unknown."""
    gpus = [device for device in inventory.get("devices", ()) if not device.get("declared")]
    return min((int(device.get("memory_bytes") or 0) for device in gpus), default=0)


def memory_by_type(node_id: int, inventory: Inventory) -> dict[str, int]:
    """Return the bytes of memory of the smallest GPU of each type; empty for a single type."""
    rows = Device.objects.filter(node_id=node_id, retired_at=None, is_gpu=True)
    types = dict(rows.values_list("model", "device_type"))
    found: dict[str, int] = {}
    for device in inventory.devices:
        kind = types.get(device.type)
        if kind is not None and not device.declared:
            found[kind] = min(device.memory_bytes, found.get(kind, device.memory_bytes))
    return found if len(found) > 1 else {}


def nvlink_types(node_id: int, inventory: Inventory) -> list[str]:
    """Return the device types of a node whose cells are, or contain, NVLink domains.

    A node whose GPUs of a type are all in one domain is itself the cell of this domain.
    """
    rows = Device.objects.filter(node_id=node_id, retired_at=None, is_gpu=True)
    chains = {
        model: (kind, chain)
        for model, kind, chain in rows.values_list("model", "device_type", "chain")
    }
    domains: dict[tuple[str, str], list[int]] = {}
    for device in inventory.devices:
        if device.type in chains and not device.declared:
            domains.setdefault(chains[device.type], []).append(device.nvlink)
    if all(domain < 0 for found in domains.values() for domain in found):
        return []
    cells = current_topology().cells.chains
    return sorted(
        kind
        for (kind, chain), found in domains.items()
        if (len(found) > 1 and len(set(found)) == 1 and found[0] >= 0)
        or cells[chain].has_level("nvlink")
    )


def _follow_driver(node: Node, inventory: Mapping[str, Any], now: datetime) -> None:
    """Mark a node as suspect while its GPU driver does not respond, and then as ready again."""
    codes = {condition.get("code") for condition in inventory.get("conditions", ())}
    if DRIVER_HUNG in codes:
        contact_lost(node_id=node.pk, reason=DRIVER_HANGS, now=now)
    elif driver_hangs(node):
        contact_back(node_id=node.pk, boot_id=node.boot_id, now=now)


def plain_level(probes: Sequence[IsolationProbe]) -> str:
    """Return the best isolation level for jobs without an image; empty if unknown.

    A node that could not probe its levels reports even the weakest level as unavailable.
    """
    is_unknown = any(probe.level == NONE and not probe.available for probe in probes)
    return best_available(probes, of=tuple(PLAIN_LEVELS)) if probes and not is_unknown else ""


def _set_contact(node_id: int, contact: NodeState, reason: str, now: datetime) -> bool:
    """Write the contact and the derived state; return whether the contact changed."""
    node = Node.objects.filter(pk=node_id, removed_at=None).first()
    if node is None:
        return False
    if node.contact == contact:
        if driver_hangs(node) and reason != DRIVER_HANGS:  # the node has stopped responding, too
            text = reason[:500]
            Node.objects.filter(pk=node_id).update(contact_reason=text, state_reason=text)
            node_has_changed(node_id)
        return False
    state = state_of(contact, node.held)
    changes: dict[str, Any] = {"contact": contact, "contact_reason": reason[:500], "state": state}
    changes["state_reason"] = reason[:500] if reason else node.held_reason
    if node.contact == NodeState.READY:
        # The fence counts from here: until now, the node may have received a directive to start.
        changes["last_contact_at"] = now
    if state != node.state:
        changes["state_since"] = now
    Node.objects.filter(pk=node_id).update(**changes)
    if state != node.state:
        put_node_state(node_id=node_id, name=node.name, state=state, now=now)
    node_has_changed(node_id)
    request_round_on_commit("node")
    return True


def _move_jobs(
    node_id: int, state: JobState, event: JobEventKind, reason: str, now: datetime
) -> None:
    attempts = (
        Attempt.objects.filter(
            ended_at=None,
            job__state=state,
            members__node_id=node_id,
            members__step=MemberStep.RUNNING,
        )
        .select_related("job")
        .distinct()
        .order_by("id")
    )
    for attempt in attempts:
        if event is JobEventKind.CONTACT_BACK and _has_lost_member(attempt):
            continue
        try_job_event(
            job_id=attempt.job_id,
            event=event,
            now=now,
            note=Note(text=reason, attempt=attempt.number, detail={"node": node_id}),
        )


def _has_lost_member(attempt: Attempt) -> bool:
    """Return whether a running member of an attempt is on a node without contact."""
    return (
        attempt.members.filter(step=MemberStep.RUNNING)
        .exclude(node__contact=NodeState.READY)
        .exists()
    )
