"""Division of a node's devices into parts, one for each device type, each with its own cell."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduling.core.device_types import is_display
from tessera.inventory import Device

MAX_PARTS: Final = 16
"""Most device types of a node; a GPU with MIG has at most 7 profiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A cell of a node in the current topology, with the devices of one type.

    Attributes:
        chain: its chain, which contains at most one cell of the node.
        address: full address of the cell.
        numbers: numbers of its leaves on the node.
        is_fixed: whether its shape is set otherwise, since it is inside a larger cell.
    """

    chain: str
    device_type: str
    address: str
    numbers: frozenset[int]
    is_fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """The devices of one type on a node, and the cell that they have already, or None."""

    device_type: str
    devices: tuple[Device, ...]
    home: Home | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The devices of a node by part.

    Attributes:
        groups: parts whose cells result from the devices: existing ones first, then the largest.
        extra: numbers of devices without a leaf in the fixed cell of their type, by its chain.
        omitted: number of devices of further types, beyond ``MAX_PARTS``.
    """

    groups: tuple[DeviceGroup, ...]
    extra: Mapping[str, tuple[int, ...]]
    omitted: int = 0


def divide(
    devices: Sequence[Device],
    types: Mapping[str, str],
    homes: Sequence[Home] = (),
    kept: Collection[str] = (),
) -> Division:
    """Divide numbered devices into parts.

    Devices stay in the part of their leaf. A device without a leaf joins the part of its type.
    If devices of several types have leaves in one cell, the cell remains that of its own type.

    Args:
        devices: reported devices; ``index`` is the number of the leaf.
        types: device type by reported type.
        homes: the cells of the node.
        kept: chains whose cells do not change, since their reported devices agree with them.
    """
    home_of = {number: home for home in homes for number in home.numbers}
    kinds = {home.chain: _kinds(home, devices, types) for home in homes}
    members: dict[str, list[Device]] = {home.chain: [] for home in homes}
    added: dict[str, list[Device]] = {}
    extra: dict[str, list[int]] = {}
    for device in devices:
        kind, home = types[device.type], home_of.get(device.index)
        if home is None or not (home.is_fixed or home.chain in kept or kind == kinds[home.chain]):
            home = next((one for one in homes if kinds[one.chain] == kind), None)
            if home is not None and home.is_fixed:
                extra.setdefault(home.chain, []).append(device.index)
                continue
            kept = set(kept) - ({home.chain} if home is not None else set())
        (members[home.chain] if home else added.setdefault(kind, [])).append(device)
    groups = [
        DeviceGroup(device_type=kinds[home.chain], devices=tuple(members[home.chain]), home=home)
        for home in homes
        if members[home.chain] and home.chain not in kept and not home.is_fixed
    ]
    new = sorted(added, key=lambda kind: (is_display(kind), -len(added[kind])))
    room = max(MAX_PARTS - len(homes), 0)
    groups += [DeviceGroup(device_type=kind, devices=tuple(added[kind])) for kind in new[:room]]
    return Division(
        groups=tuple(groups),
        extra={chain: tuple(sorted(numbers)) for chain, numbers in extra.items()},
        omitted=sum(len(added[kind]) for kind in new[room:]),
    )


def _kinds(home: Home, devices: Sequence[Device], types: Mapping[str, str]) -> str:
    """Return the type of the devices in a cell: its own, or else the most frequent one.

    The cells of an import may have another name for the type.
    """
    counts = Counter(types[d.type] for d in devices if d.index in home.numbers)
    if not counts or home.device_type in counts:
        return home.device_type
    return counts.most_common(1)[0][0]
