"""Sia's configurations: the sizes on each device type between which it chooses (section 3.4)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policy_interface import Alloc, Shape, TypeInfo

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SiaColumns:
    """All configurations, one column each; cached across rounds, so identity means equality.

    Attributes:
        types: device types in the pool's order.
        shapes: of each column.
        kinds: the index of each column's type.
        sizes: devices of each column.
        places: the column of each type and size.
    """

    types: tuple[str, ...]
    shapes: tuple[Shape, ...]
    kinds: Ints
    sizes: Ints
    places: Mapping[tuple[str | None, int], int]

    def up_to(self, devices: int) -> tuple["SiaColumns", Ints]:
        """The columns of at most n devices, and their indices among all."""
        return _up_to(self, devices)

    def held(self, alloc: Alloc | None) -> int | None:
        """The column of a job's present allocation; None: no allocation, or another one."""
        if alloc is None or len(alloc.parts) != 1:
            return None
        return self.places.get((alloc.parts[0].type, alloc.parts[0].n))


@lru_cache(maxsize=256)
def _up_to(columns: SiaColumns, devices: int) -> tuple[SiaColumns, Ints]:
    places = np.flatnonzero(columns.sizes <= devices)
    shapes = tuple(columns.shapes[place] for place in places.tolist())
    kinds, sizes = columns.kinds[places], columns.sizes[places]
    return replace(columns, shapes=shapes, kinds=kinds, sizes=sizes, places={}), places


def columns_of(types: Mapping[str, TypeInfo], capacity: Mapping[str, int]) -> SiaColumns:
    """Powers of two inside a node, then whole nodes, for every type that there is."""
    return _columns(tuple((name, types.get(name), capacity[name]) for name in capacity))


@lru_cache(maxsize=64)
def _columns(pool: tuple[tuple[str, TypeInfo | None, int], ...]) -> SiaColumns:
    shapes: list[Shape] = []
    kinds: list[int] = []
    for kind, (name, info, capacity) in enumerate(pool):
        found = _shapes(name, info or TypeInfo(node_devices=max(1, capacity)), capacity)
        shapes += found
        kinds += [kind] * len(found)
    return SiaColumns(
        tuple(name for name, _info, _capacity in pool),
        tuple(shapes),
        np.array(kinds, dtype=np.int64),
        np.array([shape.devices for shape in shapes], dtype=np.int64),
        {(shape.type, shape.devices): index for index, shape in enumerate(shapes)},
    )


def _shapes(name: str, info: TypeInfo, capacity: int) -> list[Shape]:
    inside = {2**power for power in range(info.node_devices.bit_length())} | {info.node_devices}
    shapes = [Shape(name, 1, devices) for devices in sorted(inside) if devices <= capacity]
    most = min(capacity // info.node_devices, info.most_nodes or capacity)
    shapes += [Shape(name, nodes, nodes * info.node_devices) for nodes in range(2, most + 1)]
    return shapes
