"""The sizes on each device type between which a round chooses, one column each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policy_interface import Model, PolicyJob, Scale, Shape, Snapshot, TypeInfo

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: Number of nodes up to which each number is a size; beyond it they grow by half.
_EVERY_NODE: Final = 4


@dataclass(frozen=True, slots=True)
class SizeColumns:
    """All sizes as parallel arrays.

    Attributes:
        types: device types, in the pool's order.
        shapes: of each column, packed on as few nodes as possible.
        kinds: the index of each column's type.
        sizes: devices of each column.
        nodes: nodes of each column.
    """

    types: tuple[str, ...]
    shapes: tuple[Shape, ...]
    kinds: Ints
    sizes: Ints
    nodes: Ints

    def uses(self) -> Ints:
        """Use of each type by each column, shape ``(columns, types)``."""
        table = np.zeros((len(self.shapes), len(self.types)), dtype=np.int64)
        table[np.arange(len(self.shapes)), self.kinds] = self.sizes
        return table

    def find(self, device_type: str | None, devices: int) -> int | None:
        """The column of n devices of a type."""
        for index, shape in enumerate(self.shapes):
            if shape.type == device_type and shape.devices == devices:
                return index
        return None


def columns_of(snapshot: Snapshot, jobs: Iterable[PolicyJob], finer: int) -> SizeColumns:
    """Sizes inside a node, whole nodes, and whatever a job holds or insists on.

    Args:
        snapshot: for the pool.
        jobs: that are to be planned for.
        finer: maximum number of sizes between consecutive powers of two inside a node, at most.
    """
    pool = snapshot.pool
    types = tuple(
        (name, pool.types.get(name), pool.capacity[name]) for name in sorted(pool.capacity)
    )
    insisted = {size for job in jobs for size in _insisted(job)}
    return _columns(types, finer, tuple(sorted(insisted)))


def allowed(columns: SizeColumns, snapshot: Snapshot, jobs: Sequence[PolicyJob]) -> Flags:
    """Allowed columns of each job, shape ``(jobs, columns)``."""
    model = snapshot.model
    table = np.zeros((len(jobs), len(columns.shapes)), dtype=np.bool_)
    for row, job in enumerate(jobs):
        bounds = [
            _bounds(model, job, name) if not job.types or name in job.types else (0, 1)
            for name in columns.types
        ]
        table[row] = _possible(columns.sizes.tobytes(), columns.kinds.tobytes(), tuple(bounds))
        table[row] &= _of_scale(columns.sizes.tobytes(), job.terms.scale, job.gang)
    return table


def _bounds(model: Model, job: PolicyJob, device_type: str) -> tuple[int, int]:
    """The most replicas of a job on a type, and the devices of each."""
    most, replica = model.most_devices(job, device_type), model.replica(job, device_type)
    if job.terms.scale is None and most > 0:
        most = max(most, job.gang)
    return most, replica


@lru_cache(maxsize=4_096)
def _possible(sizes: bytes, kinds: bytes, bounds: tuple[tuple[int, int], ...]) -> Flags:
    """Columns of whole replicas, as many as the job can use; bounds by type."""
    most, replica = np.array(bounds, dtype=np.int64).T[:, np.frombuffer(kinds, dtype=np.int64)]
    devices = np.frombuffer(sizes, dtype=np.int64)
    fits: Flags = (devices % replica == 0) & (devices <= most * replica)
    return fits


@lru_cache(maxsize=4_096)
def _of_scale(sizes: bytes, scale: Scale | None, gang: int) -> Flags:
    """Columns allowed by the owner's size limits."""
    devices = np.frombuffer(sizes, dtype=np.int64)
    if scale is None:
        return np.asarray(devices == gang)
    possible = {size: scale.allows(size) for size in set(devices.tolist())}
    return np.array([possible[size] for size in devices.tolist()], dtype=np.bool_)


def _insisted(job: PolicyJob) -> tuple[int, ...]:
    """Sizes without which a job could not be planned for."""
    if job.terms.scale is None:
        return (job.gang,)
    held = (job.alloc.devices,) if job.alloc is not None else ()
    return (job.least, *held)


@lru_cache(maxsize=256)
def _columns(
    pool: tuple[tuple[str, TypeInfo | None, int], ...], finer: int, insisted: tuple[int, ...]
) -> SizeColumns:
    shapes: list[Shape] = []
    kinds: list[int] = []
    for kind, (name, info, capacity) in enumerate(pool):
        node = info.node_devices if info is not None else max(1, capacity)
        most = (info.most_nodes if info is not None else None) or capacity
        sizes = {*_inside(node, finer), *_whole_nodes(node, capacity, most), *insisted}
        for size in sorted(sizes):
            nodes = -(-size // node)
            if size <= capacity and nodes <= most:
                shapes.append(Shape(name, nodes, size))
                kinds.append(kind)
    return SizeColumns(
        types=tuple(name for name, _info, _capacity in pool),
        shapes=tuple(shapes),
        kinds=np.array(kinds, dtype=np.int64),
        sizes=np.array([shape.devices for shape in shapes], dtype=np.int64),
        nodes=np.array([shape.nodes for shape in shapes], dtype=np.int64),
    )


def _inside(node: int, finer: int) -> set[int]:
    """Powers of two, the whole node, and evenly spaced sizes between two powers."""
    powers = [1 << power for power in range(node.bit_length())]
    between = {
        power + step * power // (finer + 1) for power in powers for step in range(1, finer + 1)
    }
    return {size for size in {*powers, node, *between} if size <= node}


def _whole_nodes(node: int, capacity: int, most: int) -> set[int]:
    """Every number of nodes to begin with, then each about half as many again."""
    sizes, count = set(), 1
    while count <= most and count * node <= capacity:
        sizes.add(count * node)
        count += 1 if count < _EVERY_NODE else count // 2
    return sizes
