"""Which job sizes fit a virtual cluster, asked of a cell engine with all that runs restored."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduling.core.cells import CellEngine, fitting_sizes
from scheduling.topology.current import ChainView, TopologyNow

GANG_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)


class Fit(StrEnum):
    """When a gang of some size can start."""

    NOW = "now"
    LATER = "later"
    BORROW = "borrow"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """Which gangs fit, for one device type: an answer for each of ``sizes``.

    Attributes:
        sizes: devices of the gang; larger than a node means whole nodes.
        fits: in the same order.
    """

    device_type: str
    sizes: tuple[int, ...]
    fits: tuple[Fit, ...]


def what_fits(topology: TopologyNow, engine: CellEngine, vc: str) -> tuple[FitRow, ...]:
    """Which gangs fit a virtual cluster, by device type; of an engine in force."""
    account = engine.free_view()["virtual_clusters"][vc]  # type: ignore[index]
    promised = fitting_sizes(engine.spec, vc, engine.topology)
    by_type: dict[str, list[ChainView]] = defaultdict(list)
    for chain in topology.chains.values():
        by_type[chain.device_type].append(chain)
    rows = []
    for device_type, chains in by_type.items():
        now: dict[int, int] = defaultdict(int)
        for chain in chains:
            for size, count in account.get(chain.name, {}).get("largest_gang", {}).items():
                now[size] = max(now[size], count)
        largest = max(chain.devices for chain in chains)
        sizes = tuple(size for size in GANG_SIZES if size <= 2 * largest)
        rows.append(
            FitRow(
                device_type=device_type,
                sizes=sizes,
                fits=tuple(
                    _fit(size, now=now, later=promised.get(device_type, {}), chains=chains)
                    for size in sizes
                ),
            )
        )
    return tuple(rows)


def _fit(
    devices: int, *, now: Mapping[int, int], later: Mapping[int, int], chains: Sequence[ChainView]
) -> Fit:
    if _holds(devices, now, chains):
        return Fit.NOW
    if _holds(devices, later, chains):
        return Fit.LATER
    there = {
        level.devices: level.cells
        for chain in chains
        for level in chain.levels[: chain.node_level]
    }
    return Fit.BORROW if _holds(devices, there, chains) else Fit.NEVER


def _holds(devices: int, instances: Mapping[int, int], chains: Sequence[ChainView]) -> bool:
    """Whether a gang of so many devices is among the instances by size.

    A gang that is larger than a node is so many whole nodes.
    """
    for chain in chains:
        node = chain.levels[chain.node_level - 1].devices
        size = min(devices, node)
        count = -(-devices // size)
        if any(cell >= size and fit >= count for cell, fit in instances.items() if cell <= node):
            return True
    return False
