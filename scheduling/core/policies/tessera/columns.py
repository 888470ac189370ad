"""The candidate sizes on each device type, and the rates of each job at these sizes.

The rates of a job that has not run yet follow from one device's speed on each type and from the
requested gang. On a type without a run, they follow from the ratio of speeds to a type with one.
Fits are optimistic about untried sizes, so these are discounted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policies.engines.projecting import seen_from_each
from scheduling.core.policy_interface import Model, PolicyJob, Scale, Shape, Snapshot, TypeInfo

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: Number of nodes up to which every number is a size; larger sizes grow by half.
_EVERY_NODE: Final = 4

Floats = NDArray[np.float64]
#: Beyond the requested gang, an unmeasured job is assumed to gain little.
_BEYOND_GANG: Final = 0.3


@dataclass(frozen=True, slots=True)
class SizeColumns:
    """All sizes as parallel arrays.

    Attributes:
        types: device types, in the pool's order.
        shapes: shape of each column, packed on as few nodes as possible.
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
        """Return the column of n devices of a type, or None."""
        for index, shape in enumerate(self.shapes):
            if shape.type == device_type and shape.devices == devices:
                return index
        return None


def columns_of(snapshot: Snapshot, jobs: Iterable[PolicyJob], finer: int) -> SizeColumns:
    """Build columns: sizes inside a node, complete nodes, and sizes that jobs hold or require.

    Args:
        snapshot: snapshot with the pool.
        jobs: jobs to plan.
        finer: maximum number of sizes between consecutive powers of two inside a node.
    """
    pool = snapshot.pool
    types = tuple(
        (name, pool.types.get(name), pool.capacity[name]) for name in sorted(pool.capacity)
    )
    insisted = {size for job in jobs for size in _insisted(job)}
    return _columns(types, finer, tuple(sorted(insisted)))


def allowed(columns: SizeColumns, snapshot: Snapshot, jobs: Sequence[PolicyJob]) -> Flags:
    """Return the allowed columns of each job, shape ``(jobs, columns)``."""
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
    """Return the maximum replicas of a job on a type, and the devices of each."""
    most, replica = model.most_devices(job, device_type), model.replica(job, device_type)
    if job.terms.scale is None and most > 0:
        most = max(most, job.gang)
    return most, replica


@lru_cache(maxsize=4_096)
def _possible(sizes: bytes, kinds: bytes, bounds: tuple[tuple[int, int], ...]) -> Flags:
    """Select the columns of complete replicas that the job can use; bounds by type."""
    most, replica = np.array(bounds, dtype=np.int64).T[:, np.frombuffer(kinds, dtype=np.int64)]
    devices = np.frombuffer(sizes, dtype=np.int64)
    fits: Flags = (devices % replica == 0) & (devices <= most * replica)
    return fits


@lru_cache(maxsize=4_096)
def _of_scale(sizes: bytes, scale: Scale | None, gang: int) -> Flags:
    """Return the columns allowed by the owner's size limits."""
    devices = np.frombuffer(sizes, dtype=np.int64)
    if scale is None:
        return np.asarray(devices == gang)
    possible = {size: scale.allows(size) for size in set(devices.tolist())}
    return np.array([possible[size] for size in devices.tolist()], dtype=np.bool_)


def _insisted(job: PolicyJob) -> tuple[int, ...]:
    """Return the sizes that a job's plan must include."""
    if job.terms.scale is None:
        return (job.gang,)
    held = (job.alloc.devices,) if job.alloc is not None else ()
    return (job.least, *held, *(row.devices for row in job.grids))


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
    """Return powers of two, the complete node, and evenly spaced sizes between two powers."""
    powers = [1 << power for power in range(node.bit_length())]
    between = {
        power + step * power // (finer + 1) for power in powers for step in range(1, finer + 1)
    }
    return {size for size in {*powers, node, *between} if size <= node}


def _whole_nodes(node: int, capacity: int, most: int) -> set[int]:
    """Return small numbers of nodes, then each about half as many again."""
    sizes, count = set(), 1
    while count <= most and count * node <= capacity:
        sizes.add(count * node)
        count += 1 if count < _EVERY_NODE else count // 2
    return sizes


@dataclass(frozen=True, slots=True)
class Rates:
    """Useful steps per second.

    Attributes:
        table: rates, shape ``(jobs, columns)``; 0 where a job cannot run.
        known: jobs whose rates are in steps; the others' are only relative to each other.
        least: rate of each job at its minimum size, on its best type.
        asked: rate of each job at the requested size, or the next smaller one, on its best type.
    """

    table: Floats
    known: Flags
    least: Floats
    asked: Floats


def predicted_rates(
    snapshot: Snapshot,
    jobs: Sequence[PolicyJob],
    columns: SizeColumns,
    allowed: Flags,
    *,
    scaling: float,
    unseen: float,
    spread: float,
) -> Rates:
    """Predict the model's goodputs, completed and discounted where observations are missing.

    Args:
        snapshot: snapshot with pool and model.
        jobs: one row each.
        columns: one column each.
        allowed: columns that each job may have.
        scaling: exponent of the assumed speed-up by size before a job has run.
        unseen: exponent of the discount of sizes that do not count as tried.
        spread: factor for several nodes if a job was only measured on one.
    """
    model = snapshot.model
    seen = seen_from_each(columns.types, columns.shapes, _nodes(snapshot, columns))
    every = np.asarray(model.goodputs(jobs, seen.shapes), dtype=np.float64)
    table = every[:, seen.own]
    profiles = [model.profiled(job) for job in jobs]
    known = np.asarray((table > 0.0).any(axis=1))
    gangs = np.array([job.gang for job in jobs], dtype=np.int64)[:, None]
    speeds = np.array([[model.speed(job, name) for name in columns.types] for job in jobs])
    speeds = speeds.reshape(len(jobs), len(columns.types))
    _project(profiles, columns, table, every[:, seen.elsewhere], speeds)
    largest = np.array(
        [[profile.get(name, 0) for name in columns.types] for profile in profiles]
    ).reshape(speeds.shape)
    # Twice the largest size of a type, the largest of all, and the requested one count as tried.
    most = np.maximum(largest.max(axis=1, initial=0)[:, None], gangs)
    tried = np.maximum(2 * largest, most)[:, columns.kinds]
    node = np.array(_nodes(snapshot, columns), dtype=np.int64)[columns.kinds]
    apart = (columns.nodes > 1) & (largest[:, columns.kinds] <= node)
    table *= np.minimum(1.0, tried / columns.sizes) ** unseen
    first = _before_start(gangs, columns, speeds, scaling)
    table = np.where(known[:, None], table, first)
    table = np.nan_to_num(np.where(apart, table * spread, table)) * allowed
    return Rates(table, known, _least(table, columns), _asked(table, columns, gangs))


def _project(
    profiles: Sequence[Mapping[str, int]],
    columns: SizeColumns,
    table: Floats,
    elsewhere: Floats,
    speeds: Floats,
) -> None:
    """Fill in types on which a job has not run, from the one with its largest measured size."""
    by_source: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(np.isnan(table).any(axis=1)).tolist():
        ran = profiles[row]
        source = max(sorted(ran), key=lambda name: ran[name], default=None)
        if source in columns.types:
            by_source[source].append(row)
    for source, rows in by_source.items():
        kind = columns.types.index(source)
        base = speeds[rows, kind][:, None]
        ratios = np.divide(speeds[rows], base, out=np.zeros_like(speeds[rows]), where=base > 0.0)
        mine, there = table[rows], elsewhere[rows, kind]
        table[rows] = np.where(np.isnan(mine), there * ratios[:, columns.kinds], mine)


def _before_start(
    gangs: NDArray[np.int64], columns: SizeColumns, speeds: Floats, scaling: float
) -> Floats:
    """Return the speeds that grow with the size up to the gang, and little beyond."""
    sizes = columns.sizes.astype(np.float64)[None, :]
    growth = np.minimum(sizes, gangs) ** scaling * np.maximum(sizes / gangs, 1.0) ** _BEYOND_GANG
    rates: Floats = speeds[:, columns.kinds] * growth
    return rates


def _least(table: Floats, columns: SizeColumns) -> Floats:
    """Return the best rate at the minimum size at which a job can run."""
    sizes = np.where(table > 0.0, columns.sizes, np.iinfo(np.int64).max)
    smallest = sizes.min(axis=1, initial=np.iinfo(np.int64).max)[:, None]
    least: Floats = np.where(sizes == smallest, table, 0.0).max(axis=1, initial=0.0)
    return least


def _asked(table: Floats, columns: SizeColumns, gangs: NDArray[np.int64]) -> Floats:
    """Return the best rate at the largest size up to the gang's."""
    within = np.where((table > 0.0) & (columns.sizes <= gangs), columns.sizes, 0)
    largest = within.max(axis=1, initial=0)[:, None]
    at = np.where(largest > 0, within == largest, table > 0.0)
    asked: Floats = np.where(at, table, 0.0).max(axis=1, initial=0.0)
    return asked


def _nodes(snapshot: Snapshot, columns: SizeColumns) -> tuple[int, ...]:
    """Return the devices of a node, by type."""
    infos = [snapshot.pool.types.get(name) for name in columns.types]
    largest = int(columns.sizes.max(initial=1))
    return tuple(info.node_devices if info is not None else largest for info in infos)
