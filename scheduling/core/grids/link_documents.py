"""Link tables as probe jobs report them: validation of hostile documents, classes of links.

`tessera.train.links` writes the document.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Final

from scheduling.core.grids.links import ALL_GATHER, ALL_REDUCE, SEND, LinkPoint, Links, LinkTable
from scheduling.core.grids.model import GridInputError, powers_of_two

VERSION: Final = 1
MOST_POINTS: Final = 512
MOST_SECONDS: Final = 3_600.0
NETWORK: Final = "network"
"""Class of links between devices that no cell contains together."""
TRANSPORTS: Final = ("gloo", "tcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLinks:
    """Measured messages over links of one class.

    Attributes:
        link_class: level of the smallest cell with both devices, or ``network``.
        transport: ``gloo``, or ``tcp`` without PyTorch.
        points: medians over all measured pairs.
        spread: median of the relative spread of the repetitions.
        pairs: number of measured pairs.
    """

    link_class: str
    transport: str
    points: tuple[LinkPoint, ...]
    spread: float
    pairs: int


def read_links(
    document: Mapping[str, object], addresses: Sequence[str], levels: Sequence[str]
) -> tuple[MeasuredLinks, ...]:
    """Check a reported document and return its measurements by class of link.

    Args:
        document: the reported JSON object; it may be hostile.
        addresses: cell addresses of the devices, in the order of ranks.
        levels: names of the levels of the chain, from the device up.

    Raises:
        GridInputError: the document is not valid.
    """
    transport = document.get("transport")
    if document.get("version") != VERSION or transport not in TRANSPORTS:
        raise _wrong("version", "the document is not of this version")
    if document.get("ranks") != len(addresses):
        raise _wrong("ranks", "the job has another number of devices")
    items = document.get("points")
    if not isinstance(items, list) or not 0 < len(items) <= MOST_POINTS:
        raise _wrong("points", f"it has no list of 1 to {MOST_POINTS} entries")
    times: dict[str, dict[tuple[str, int, int], list[float]]] = defaultdict(dict)
    spreads: dict[str, list[float]] = defaultdict(list)
    pairs: dict[str, set[int]] = defaultdict(set)
    for item in items:
        primitive, group, rank, size, seconds, spread = _point(item, len(addresses))
        others = (rank,) if group == 2 else range(1, group)
        name = max(
            (_class_number(addresses[0], addresses[other]) for other in others),
        )
        link_class = levels[name - 1] if name <= len(levels) else NETWORK
        times[link_class].setdefault((primitive, group, size), []).append(seconds)
        spreads[link_class].append(spread)
        pairs[link_class].add(rank)
    return tuple(
        MeasuredLinks(
            link_class=link_class,
            transport=str(transport),
            points=tuple(LinkPoint(*key, median(found)) for key, found in sorted(own.items())),
            spread=median(spreads[link_class]),
            pairs=len(pairs[link_class]),
        )
        for link_class, own in times.items()
    )


def link_table(points: Iterable[LinkPoint]) -> LinkTable:
    """Return the table with all groups: those that were not measured are projected.

    A ring of g processes makes 2 (g - 1) transfers of a g-th of an all-reduce's bytes; an
    all-gather or a reduce-scatter makes half of them. Two processes make two of one half.
    """
    own = list(points)
    sends = [point for point in own if point.primitive == SEND]
    sums = [point for point in own if point.primitive == ALL_REDUCE]
    pairs = {p.size: p.seconds for p in sums if p.group == 2}
    if not pairs:
        pairs = {2 * p.size: 2.0 * p.seconds for p in sends}
    known = {(p.group, p.size): p.seconds for p in sums}
    measured = {group for group, _ in known}
    latency = min(pairs.values(), default=0.0) / 2.0
    found = list(sends)
    for group, (size, seconds) in product(list(powers_of_two(MOST_GROUP))[1:], pairs.items()):
        ring = seconds * 2.0 * (group - 1) / group + latency * (2 * (group - 1)) * (1 - 2 / group)
        if group in measured:
            if (group, size) not in known:
                continue
            ring = known[group, size]
        found.append(LinkPoint(ALL_REDUCE, group, size, ring))
        found += [
            LinkPoint(name, group, size, ring / 2) for name in (ALL_GATHER, "reduce_scatter")
        ]
    return LinkTable(tuple(found))


MOST_GROUP: Final = 64
"""Largest projected group."""


def links_of(
    spans: Sequence[tuple[str, int]],
    measured: Mapping[str, Sequence[LinkPoint]],
    otherwise: Sequence[LinkPoint],
) -> Links:
    """Return the links of a device type: measured tables, and another one for other classes.

    Args:
        spans: levels of the chain above the device, with the devices of a cell.
        measured: points by class.
        otherwise: points of a profile, for classes that were not measured.
    """
    classes: list[tuple[str, int]] = []
    for name, devices in (*spans, (NETWORK, 1 << 30)):
        if not classes or devices > classes[-1][1]:
            classes.append((name, devices))
    fallback = link_table(otherwise)
    return Links(
        spans=tuple(classes),
        tables={
            name: link_table(measured[name]) if measured.get(name) else fallback
            for name, _ in classes
        },
    )


def is_measured(
    links: Links, measured: Mapping[str, Sequence[LinkPoint]], devices: int, widths: Iterable[int]
) -> bool:
    """Return whether all links and groups of a plan were measured.

    Args:
        links: links of the type.
        measured: measured points by class.
        devices: devices of the plan, from the first of a cell.
        widths: numbers of processes of its groups.
    """
    if devices == 1:
        return True
    names = [name for name, _ in links.spans]
    widest = names.index(links.class_of(0, devices - 1))
    used = {links.class_of(0, last) for last in range(1, devices)}
    if not all(measured.get(name) for name in names[: widest + 1] if name in used):
        return False
    groups = {p.group for points in measured.values() for p in points if p.primitive == ALL_REDUCE}
    return all(width in groups for width in widths if width > 1)


def _class_number(one: str, other: str) -> int:
    """Return the number of the level of the smallest common cell; the device has number 1."""
    ours, theirs = one.split("/"), other.split("/")
    common = 0
    for mine, yours in zip(ours, theirs, strict=False):
        if mine != yours:
            break
        common += 1
    return len(ours) - common + 1


def _point(item: object, ranks: int) -> tuple[str, int, int, int, float, float]:
    if not isinstance(item, list) or len(item) != 6 or item[0] not in (SEND, ALL_REDUCE):
        raise _wrong("points", "an entry is not a measured message")
    primitive, group, rank, size, seconds, spread = item
    for value in (group, rank, size):
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong("points", "a number is not a whole number")
    is_group = group == 2 or (primitive == ALL_REDUCE and rank == group - 1)
    if not is_group or group & (group - 1) or not 0 < rank < ranks or not 0 < size <= 1 << 30:
        raise _wrong("points", "a group, rank or size is out of bounds")
    for value in (seconds, spread):
        # Not-a-number fails the comparison, too.
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _wrong("points", "a time is not a number")
        if not 0 <= value <= MOST_SECONDS:
            raise _wrong("points", "a time is out of bounds")
    return str(primitive), group, rank, size, float(seconds), float(spread)


def _wrong(field: str, message: str) -> GridInputError:
    return GridInputError(f"{message}.", field=field, remedy="Probe the links again.")
