"""Columns of sizes projected to another type's nodes, for jobs not measured on theirs yet."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policy_interface import Shape

Ints = NDArray[np.int64]


class ShapeSet(NamedTuple):
    """All shapes of a round, each once.

    Attributes:
        shapes: the columns' own and their equivalents on other types; grouped by type.
        own: index of each column among them.
        elsewhere: index of the equivalent of each column as seen from each type, shape ``(types,
            columns)``.
    """

    shapes: tuple[Shape, ...]
    own: Ints
    elsewhere: Ints


@lru_cache(maxsize=256)
def seen_from_each(
    types: tuple[str, ...], shapes: tuple[Shape, ...], node_devices: tuple[int, ...]
) -> ShapeSet:
    """Build the sizes of all columns on every type's nodes, so that one query suffices for all.

    Args:
        types: device types.
        shapes: shapes of the columns.
        node_devices: devices per node, by type.
    """
    seen = [
        [Shape(name, -(-shape.devices // each), shape.devices) for shape in shapes]
        for name, each in zip(types, node_devices, strict=True)
    ]
    distinct = sorted({*shapes, *(shape for some in seen for shape in some)})
    places = {shape: place for place, shape in enumerate(distinct)}
    own = np.array([places[shape] for shape in shapes], dtype=np.int64)
    elsewhere = [[places[shape] for shape in some] for some in seen]
    return ShapeSet(tuple(distinct), own, np.array(elsewhere, dtype=np.int64))
