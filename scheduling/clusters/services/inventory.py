"""Applies a node's inventory to its devices and cells, without removing devices in use."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.conditions import canary_settings, condition_rows
from scheduling.clusters.services.node_cells import shaped_cells
from scheduling.clusters.services.topology import (
    LeafPlace,
    append_version,
    in_turn,
    leaf_places,
    move_devices,
    retire_devices,
)
from scheduling.common.on_commit import node_has_changed, request_round_on_commit
from scheduling.core.canaries import is_testable
from scheduling.core.device_seats import (
    DeviceSeat,
    Seated,
    seat_devices,
    without_shared_uuids,
)
from scheduling.core.device_types import is_display
from scheduling.core.messages import sentence
from scheduling.enums import CanaryState
from scheduling.runs.models import Lease
from scheduling.topology.current import TopologyNow, current_topology
from tenants.audit import Actor, record
from tessera.hardware import QUARANTINE
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tessera.wire import ProtocolError

MISSING: Final = "no longer found on the node"
_FACTS: Final = (
    *("uuid", "serial", "pci_address", "driver_index", "model"),
    *("is_gpu", "cpus", "memory_bytes", "sharing_modes"),
)
_HEALTH: Final = ("healthy", "health_reason", "fault", "canary")
_MARKS: Final = ("disabled_reason", "disabled_until", "fault", "canary")
_OF_PROCESSES: Final = sentence("condition-foreign-process")
"""A fault of the use of a device, not of the device."""
_SYSTEM: Final = Actor.system("inventory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The changes by an inventory.

    Attributes:
        version: current topology version.
        is_new_version: whether the cells have changed.
        added: indices of new devices.
        retired: indices of devices removed from the topology.
        missing: indices of devices marked as unhealthy, since they may be held or guaranteed.
        warnings: parts that did not fit, as texts.
    """

    version: int
    is_new_version: bool
    added: tuple[int, ...] = ()
    retired: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()


def apply_inventory(*, node_id: int, inventory: Inventory, now: datetime) -> Applied:
    """Set the node's devices and cell to its inventory; idempotent.

    A new node gets a separate cell for each device type. Devices are assigned to leaves by
    identity: a missing GPU becomes unhealthy, and a replacement gets a separate row. An existing
    cell changes its shape only if no job holds one of its devices, every guarantee still fits, and
    none of its GPUs is missing. An imported cell inside a larger cell does not change its shape.
    Otherwise missing devices become unhealthy, and the result has warnings.

    Raises:
        StaleEditError: concurrent edits changed the topology at every try.
    """
    return in_turn(lambda: _apply(node_id, inventory, now))


def apply_device_share(node: Node, now: datetime) -> None:
    """Give the devices of a node the share that an admin has set.

    Call it in the admin's transaction and turn; it applies the last inventory again.
    """
    if not node.inventory:
        return
    with suppress(ProtocolError):  # of another version; the next probe applies the share
        _apply(node.pk, Inventory.from_json(node.inventory), now)


def _apply(node_id: int, inventory: Inventory, now: datetime) -> Applied:
    node = Node.objects.get(pk=node_id)
    topology = current_topology()
    inventory = replace(inventory, devices=without_shared_uuids(inventory.devices))
    places = _places_of(topology, node.name)
    rows = {row.index: row for row in node.devices.filter(retired_at=None)}
    held = set(
        Lease.objects.filter(released_at=None, device__node=node).values_list(
            "device_id", flat=True
        )
    )
    seated = seat_devices(_seats(node.name, places, rows, held), inventory.devices)
    found = {
        number: device
        for device, number in reversed(list(zip(inventory.devices, seated.numbers, strict=True)))
        if number is not None
    }
    numbered = [replace(device, index=number) for number, device in sorted(found.items())]
    kept = _kept_chains(places, rows, seated)
    spec, warnings = shaped_cells(
        node, topology, places, inventory=replace(inventory, devices=numbered), kept=kept
    )
    if spec is not None:
        appended = append_version(
            before=topology.version,
            spec=spec,
            reason=f"inventory of {node.name}",
            user_id=None,
            now=now,
        )
        topology = TopologyNow(appended.version, spec)
        places = _places_of(topology, node.name)
    rows = {seated.moved.get(number, number): row for number, row in rows.items()}
    written, has_changed = _write_devices(
        node=node, places=places, inventory=inventory, found=found, rows=rows, now=now
    )
    applied = replace(
        written,
        version=topology.version,
        is_new_version=spec is not None,
        warnings=(*warnings, *_seat_warnings(node, inventory, seated)),
    )
    if has_changed or applied.is_new_version:
        _signal_change(node, applied)
    return applied


def _seats(
    name: str, places: Mapping[int, LeafPlace], rows: Mapping[int, Device], held: set[int]
) -> list[DeviceSeat]:
    """Return the leaves of a node, with the devices of their rows."""
    found = []
    for place in places.values():
        row = rows.get(place.index)
        _, _, inside = f"/{place.address}".partition(f"/{name}/")
        found.append(
            DeviceSeat(
                number=place.index,
                part=place.chain,
                cells=tuple(inside.split("/")[:-1]),
                uuid=row.uuid if row else "",
                pci_address=row.pci_address if row else "",
                model=row.model if row else "",
                is_held=row is not None and row.pk in held,
            )
        )
    return found


def _places_of(topology: TopologyNow, name: str) -> dict[int, LeafPlace]:
    return {p.index: p for p in leaf_places(topology).values() if p.node == name}


def _kept_chains(
    places: Mapping[int, LeafPlace], rows: Mapping[int, Device], seated: Seated
) -> frozenset[str]:
    """Return the chains of the node's cells with GPUs that do not change.

    A cell does not change while one of its GPUs is missing, or while the reported tree equals it.
    New GPUs and another tree change it.
    """
    present = {number for number in seated.numbers if number is not None}
    numbers: dict[str, set[int]] = {}
    for number, place in places.items():
        numbers.setdefault(place.chain, set()).add(number)
    return frozenset(
        chain
        for chain, own in numbers.items()
        if any(number in rows and rows[number].uuid for number in own)
        and (own - present or chain not in seated.inconsistent)
    )


def _seat_warnings(node: Node, inventory: Inventory, seated: Seated) -> tuple[str, ...]:
    waiting = [
        device.uuid
        for device, number in zip(inventory.devices, seated.numbers, strict=True)
        if number is None
    ]
    warnings = []
    if waiting:
        uuids = ", ".join(waiting)
        warnings.append(sentence("devices-wait-for-leaf", node=node.name, uuids=uuids))
    if not seated.is_consistent:
        warnings.append(sentence("devices-moved-in-use", node=node.name))
    return tuple(warnings)


def _write_devices(
    *,
    node: Node,
    places: Mapping[int, LeafPlace],
    inventory: Inventory,
    found: Mapping[int, Found],
    rows: Mapping[int, Device],
    now: datetime,
) -> tuple[Applied, bool]:
    """Write the rows of the node's leaves, and return the changes and whether any row changed.

    Leaves, devices and rows are given by the number of their leaf.
    """
    retired = [
        row
        for number, row in rows.items()
        if number not in places or _is_another(row, found.get(number))
    ]
    retire_devices(retired, now)
    gone = {row.pk for row in retired}
    kept = {number: row for number, row in rows.items() if row.pk not in gone}
    has_moved = any(number != row.index for number, row in kept.items())
    move_devices(
        {row.pk: places[number] for number, row in kept.items()},
        {row.pk: row for row in kept.values()},
    )
    working = sum(not is_display(place.device_type) for place in places.values())
    cpus, memory = device_share(node, inventory, working or len(places))
    added = [places[number] for number in sorted(places.keys() - kept.keys())]
    new = {place.index: _new_row(node, place) for place in added}
    for number, row in new.items():
        _fill(row, found.get(number), cpus, memory, is_set=node.device_memory_bytes is not None)
    _restore_marks(new.values())
    refreshed = _refresh(kept, found, cpus, memory, is_set=node.device_memory_bytes is not None)
    faulty = _set_faults(node, {**kept, **new}, found, inventory)
    Device.objects.bulk_create(new.values())
    changed = [row for row in kept.values() if row.pk in refreshed | faulty]
    Device.objects.bulk_update(changed, (*_FACTS, *_HEALTH), batch_size=500)
    has_changed = bool(changed) or has_moved or bool(added) or bool(retired)
    applied = Applied(
        version=0,
        is_new_version=False,
        added=tuple(place.index for place in added),
        retired=tuple(row.index for row in retired),
        missing=tuple(sorted(places.keys() - found.keys())),
    )
    return applied, has_changed


def _is_another(row: Device, found: Found | None) -> bool:
    """Return whether another GPU has replaced a device."""
    return found is not None and bool(row.uuid and found.uuid) and row.uuid != found.uuid


def _restore_marks(rows: Collection[Device]) -> None:
    """Give GPUs the quarantine and the canary state that they had in their previous place."""
    uuids = [row.uuid for row in rows if row.uuid]
    if not uuids:
        return
    known = Device.objects.filter(uuid__in=uuids).order_by("pk")
    newest = {before.uuid: before for before in known}
    for row in rows:
        before = newest.get(row.uuid)
        if before is not None:
            for column in _MARKS:
                setattr(row, column, getattr(before, column))


def device_share(node: Node, inventory: Inventory, devices: int) -> tuple[float, int]:
    """Return the processors and the memory in bytes of the machine per device.

    It is an equal part of the machine, or what an admin has set, if that is less. A display GPU
    has the same share, but does not reduce that of the others.
    """
    cpus, memory = inventory.cpus / max(devices, 1), inventory.memory_bytes // max(devices, 1)
    return (
        cpus if node.device_cpus is None else min(cpus, node.device_cpus),
        memory if node.device_memory_bytes is None else min(memory, node.device_memory_bytes),
    )


def _new_row(node: Node, place: LeafPlace) -> Device:
    return Device(
        node=node,
        index=place.index,
        address=place.address,
        chain=place.chain,
        device_type=place.device_type,
    )


def _refresh(
    rows: Mapping[int, Device],
    found: Mapping[int, Found],
    cpus: float,
    memory: int,
    *,
    is_set: bool,
) -> set[int]:
    """Fill the rows; return the primary keys of those that change."""
    changed = set()
    for number, row in rows.items():
        before = [getattr(row, column) for column in _FACTS]
        _fill(row, found.get(number), cpus, memory, is_set=is_set)
        if [getattr(row, column) for column in _FACTS] != before:
            changed.add(row.pk)
    return changed


def _fill(row: Device, found: Found | None, cpus: float, memory: int, *, is_set: bool) -> None:
    """Fill a row with the reported device; the row of a missing device is unchanged.

    Args:
        row: the row.
        found: the device; None if it is missing.
        cpus: processors of the device.
        memory: bytes of the device.
        is_set: whether an admin has set this memory, so that a declaration does not replace it.
    """
    row.cpus = cpus
    row.memory_bytes = memory
    if found is None:
        return
    if found.declared and found.memory_bytes and not is_set:
        row.memory_bytes = found.memory_bytes
    row.uuid = found.uuid[:100] or (row.uuid if not found.declared else "")
    row.model, row.serial, row.pci_address = found.type, found.serial, found.pci_address
    row.driver_index = None if found.declared else found.index
    row.is_gpu = not found.declared
    row.sharing_modes = list(found.sharing_modes)


def _set_faults(
    node: Node, rows: Mapping[int, Device], found: Mapping[int, Found], inventory: Inventory
) -> set[int]:
    """Set the fault of each device: missing, or a condition that quarantines it.

    A GPU whose condition has ended waits for a canary job, if one can test it, also if the GPU
    was missing in between. It does not if an admin has changed the action of the condition.

    Returns:
        Primary keys of the rows that change.
    """
    conditions = condition_rows(inventory.conditions, list(rows.values()))
    faults = {number: MISSING for number in rows if number not in found}
    for one in conditions:
        if one.device is not None and one.action == QUARANTINE:
            faults[one.device] = one.text
    noted = {(one.device, one.text) for one in conditions}
    changed = set()
    for number, row in rows.items():
        before = row.fault, row.canary, row.healthy, row.health_reason
        fault = faults.get(number, "")
        if fault not in ("", MISSING):
            row.canary = ""
        elif (number, row.fault) not in noted and _had_hardware_fault(row):
            row.canary = CanaryState.DUE if _may_test(node, inventory) else ""
        row.fault = fault
        row.set_health()
        if (row.fault, row.canary, row.healthy, row.health_reason) != before:
            changed.add(row.pk)
    return changed


def _had_hardware_fault(row: Device) -> bool:
    return row.is_gpu and row.fault not in ("", MISSING, _OF_PROCESSES)


def _may_test(node: Node, inventory: Inventory) -> bool:
    """Return whether a canary job can test GPUs of a node, and devices wait for it."""
    return is_testable(
        reader=inventory.reader,
        isolation=node.isolation_level,
        has_engine=node.has_docker,
        settings=canary_settings(),
    )


def _signal_change(node: Node, applied: Applied) -> None:
    record(
        actor=_SYSTEM,
        action="node.inventory",
        obj=node,
        after={
            "topology": applied.version,
            "added": _words(applied.added),
            "retired": _words(applied.retired),
            "missing": _words(applied.missing),
            "warnings": list(applied.warnings),
        },
    )
    node_has_changed(node.pk)
    request_round_on_commit("inventory")


def _words(indices: Iterable[int]) -> list[int]:
    return sorted(indices)
