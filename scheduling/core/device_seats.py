"""Maps each reported device of a node to a leaf of the node's cell, by the identity (UUID)."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from tessera.inventory import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeat:
    """A leaf of a node's cell, and its device so far.

    Attributes:
        number: number of the leaf on its node, which is shown as the number of the device.
        part: chain of the node's cell with the leaf; a node has a cell for each device type.
        cells: addresses of the cells between node and leaf, from the node down.
        uuid: identity of the device; empty for a declared one, and if unknown.
        pci_address: its address on the bus at the last probe, or empty.
        model: type that the node reported for it, or empty.
        is_held: a job holds the device.
    """

    number: int
    part: str = ""
    cells: tuple[str, ...] = ()
    uuid: str = ""
    pci_address: str = ""
    model: str = ""
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """The leaf of each device.

    Attributes:
        numbers: number of the leaf by position in the reported devices. None: a job still holds
            the previous device of the leaf.
        moved: number before -> number now, for known devices whose leaf is another one.
        inconsistent: parts whose cells do not agree with the tree that the node reports.
    """

    numbers: tuple[int | None, ...]
    moved: Mapping[int, int]
    inconsistent: frozenset[str] = frozenset()

    @property
    def is_consistent(self) -> bool:
        """Whether the cells of all parts agree with the reported tree."""
        return not self.inconsistent


def seat_devices(seats: Sequence[DeviceSeat], devices: Sequence[Device]) -> Seated:
    """Assign each device to a leaf.

    A device keeps its leaf in any order of the driver's list, so the loss, move or exchange of a
    device does not affect others. Devices change their leaves only if they are in other cells of
    the node than their leaves, if the PCI addresses confirm this, and if no job holds one of them.

    Args:
        seats: the leaves of the node, each number once.
        devices: the devices as reported, no two with one UUID (``without_shared_uuids``).
    """
    stay = _assigned(seats, devices, _BY_IDENTITY)
    inconsistent = _inconsistent(seats, devices, stay)
    if not inconsistent:
        return Seated(numbers=tuple(stay), moved={})
    moving = _assigned(seats, devices, _BY_PLACE)
    moved = _moves(seats, devices, moving)
    held = {seat.number for seat in seats if seat.is_held}
    if moved and not held & moved.keys() and not _inconsistent(seats, devices, moving):
        return Seated(numbers=tuple(moving), moved=moved)
    return Seated(numbers=tuple(stay), moved={}, inconsistent=inconsistent)


def without_shared_uuids(devices: Sequence[Device]) -> list[Device]:
    """Return the devices; UUIDs that several devices report are removed."""
    shared = Counter(device.uuid for device in devices)
    return [replace(d, uuid="") if d.uuid and shared[d.uuid] > 1 else d for d in devices]


Matches = Callable[[DeviceSeat, Device], bool]


def _same_uuid(seat: DeviceSeat, device: Device) -> bool:
    return bool(device.uuid) and seat.uuid == device.uuid


def _same_address(seat: DeviceSeat, device: Device) -> bool:
    return bool(device.pci_address) and seat.pci_address == device.pci_address


def _same_board(seat: DeviceSeat, device: Device) -> bool:
    """Return whether the address identifies the device, since one UUID is unknown."""
    return _same_address(seat, device) and not (seat.uuid and device.uuid)


def _same_index(seat: DeviceSeat, device: Device) -> bool:
    """Return whether only the index can identify the device."""
    is_plain = not device.uuid and not device.pci_address
    return seat.number == device.index and (is_plain or not (seat.uuid or seat.pci_address))


def _same_place(seat: DeviceSeat, device: Device) -> bool:
    """Return whether a device of the leaf's model is at the bus address of the leaf."""
    return _same_address(seat, device) and seat.model in {"", device.type}


def _unmoved(seat: DeviceSeat, device: Device) -> bool:
    """Return whether the same device is at the same address: MIG instances share an address."""
    return _same_uuid(seat, device) and _same_address(seat, device)


_BY_IDENTITY: tuple[Matches, ...] = (_same_uuid, _same_board, _same_index)
_BY_PLACE: tuple[Matches, ...] = (_unmoved, _same_place, *_BY_IDENTITY)


def _assigned(
    seats: Sequence[DeviceSeat], devices: Sequence[Device], ways: Iterable[Matches]
) -> list[int | None]:
    free = {seat.number: seat for seat in seats}
    numbers: list[int | None] = [None] * len(devices)
    for matches in ways:
        for position, device in enumerate(devices):
            if numbers[position] is not None:
                continue
            for seat in free.values():
                if matches(seat, device):
                    numbers[position] = seat.number
                    del free[seat.number]
                    break
    _seat_newcomers(seats, devices, numbers, free)
    return numbers


def _seat_newcomers(
    seats: Sequence[DeviceSeat],
    devices: Sequence[Device],
    numbers: list[int | None],
    free: dict[int, DeviceSeat],
) -> None:
    """Assign new devices to the leaves of missing ones, or to new numbers."""
    cells = {seat.number: (seat.part, seat.cells) for seat in seats}
    taken = {seat.number for seat in seats}
    for position, device in enumerate(devices):
        if numbers[position] is not None:
            continue
        same_model = [seat for seat in free.values() if seat.model in {"", device.type}]
        near = {
            cells.get(number)
            for other, number in zip(devices, numbers, strict=True)
            if number is not None and other.path == device.path
        }
        chosen = min(
            (seat for seat in same_model if not seat.is_held),
            key=lambda seat: (
                seat.pci_address != device.pci_address,
                (seat.part, seat.cells) not in near,
                seat.number,
            ),
            default=None,
        )
        if chosen is not None:
            numbers[position] = chosen.number
            del free[chosen.number]
        elif not same_model:
            new = next(n for n in (device.index, *range(len(taken) + 1)) if n not in taken)
            numbers[position] = new
            taken.add(new)


def _moves(
    seats: Sequence[DeviceSeat], devices: Sequence[Device], numbers: Sequence[int | None]
) -> dict[int, int]:
    """Return the new leaf of each known device that changes its leaf, missing ones included.

    Empty if a missing device would have no leaf.
    """
    now = {
        device.uuid: number
        for device, number in zip(devices, numbers, strict=True)
        if device.uuid and number is not None
    }
    known = {seat.number: now[seat.uuid] for seat in seats if seat.uuid in now}
    arrivals = set(known.values())
    part = {seat.number: seat.part for seat in seats}
    vacated = sorted(known.keys() - set(numbers))
    for displaced in [s.number for s in seats if s.number not in known and s.number in arrivals]:
        leaf = next((one for one in vacated if part[one] == part[displaced]), None)
        if leaf is None:
            return {}
        known[displaced] = leaf
        vacated.remove(leaf)
    return {old: new for old, new in known.items() if old != new}


def _inconsistent(
    seats: Sequence[DeviceSeat], devices: Sequence[Device], numbers: Sequence[int | None]
) -> frozenset[str]:
    """Return the parts in which a level of the leaves groups the devices as no reported one does.

    Levels that do not divide the devices are not stored, so their number may differ.
    """
    leaf_of = {seat.number: seat for seat in seats}
    parts: dict[str, list[tuple[tuple[str, ...], tuple[int, ...]]]] = {}
    for number, device in zip(numbers, devices, strict=True):
        if number is not None and number in leaf_of:
            seat = leaf_of[number]
            parts.setdefault(seat.part, []).append((seat.cells, tuple(device.path)))
    return frozenset(part for part, pairs in parts.items() if not _agree(pairs))


def _agree(pairs: Sequence[tuple[tuple[str, ...], tuple[int, ...]]]) -> bool:
    """Return whether the cells group devices as their reported paths do, given pairs of both."""
    depth = min((len(found) for _, found in pairs), default=0)
    if depth == 0:
        return True
    reported = {_grouping([found[:level] for _, found in pairs]) for level in range(depth + 1)} | {
        tuple(range(len(pairs)))
    }
    return all(
        _grouping([own[: level + 1] for own, _ in pairs]) in reported
        for level in range(max(len(own) for own, _ in pairs))
    )


def _grouping(labels: Sequence[Hashable]) -> tuple[int, ...]:
    """Return the groups of equal labels, equal for equal groups under other labels."""
    numbers = count()
    known: dict[Hashable, int] = {}
    return tuple(
        known[label] if label in known else known.setdefault(label, next(numbers))
        for label in labels
    )
