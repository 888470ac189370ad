"""Sia's matrix: configurations as columns, and the goodput of each job at each configuration.

Goodputs are relative to the job's smallest configuration (SOSP '23, section 3.4). If a job has not
run on a type, its goodput there is projected from a type on which it has, by the ratio of
throughputs on one device (section 3.2, bootstrapping).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policies.engines.projecting import seen_from_each
from scheduling.core.policy_interface import Alloc, PolicyJob, Scale, Shape, Snapshot, TypeInfo

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SiaColumns:
    """All configurations, one column each; cached across rounds, so identity means equality.

    Attributes:
        types: device types in the pool's order.
        shapes: shape of each column.
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
        """Return the columns of at most n devices, and their indices among all."""
        return _up_to(self, devices)

    def held(self, alloc: Alloc | None) -> int | None:
        """Return the column of a job's present allocation, or None if no column matches."""
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
    """Build the columns for every type: powers of two inside a node, then complete nodes."""
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


Floats = NDArray[np.float64]
#: Replaces the goodput of impossible allocations.
NOTHING = 1e-4
_LARGEST = float(np.finfo(np.float64).max)
_BOUNDS = (4, 16, 1 << 30)
#: Minimum number of jobs for separate handling of small and large ones.
_MANY = 48


def scaled_goodputs(
    snapshot: Snapshot,
    jobs: Sequence[PolicyJob],
    columns: SiaColumns,
    *,
    limits: Sequence[int],
    within_request: bool,
    bootstrap: bool,
) -> Floats:
    """Return goodputs, shape ``(jobs, columns)``, scaled to 1 at each job's smallest useful size.

    Args:
        snapshot: pool and model.
        jobs: one row each.
        columns: the configurations.
        limits: maximum number of replicas of each job; its smallest size on a type is always
            allowed.
        within_request: estimate for batches up to the requested one only.
        bootstrap: judge a job that has not run yet by one replica's speed on each type.
    """
    if not jobs or not columns.shapes:
        return np.zeros((len(jobs), len(columns.shapes)))
    replicas = _replicas(snapshot, jobs, columns)
    sizes = columns.sizes[None, :]
    able = (sizes % replicas == 0) & np.array(
        [_permits(job.types, job.terms.scale, columns) for job in jobs]
    )
    first = _first_sizes(jobs, columns, able, replicas)
    most = np.maximum(np.array(limits, dtype=np.int64)[:, None] * replicas, first)
    allowed = able & (sizes <= most)
    known = np.zeros(allowed.shape)
    for bound, some_rows in _by_bound(most.max(axis=1)).items():
        few, places = columns.up_to(bound)
        some_jobs = [jobs[row] for row in some_rows]
        found = _with_projections(snapshot, some_jobs, few, within_request)
        known[some_rows[:, None], places] = found
    useful = allowed & (known > 0.0)
    every, places = np.arange(len(jobs)), np.where(useful, known, np.inf).argmin(axis=1)
    some = useful[every, places][:, None]
    unit = replicas[every, places][:, None] / np.where(some, known[every, places][:, None], 1.0)
    rows = np.where(useful, np.maximum(known * unit, NOTHING), NOTHING)
    for row in np.flatnonzero(~some).tolist():
        if not snapshot.model.profiled(jobs[row]):
            begins = allowed[row] & (sizes[0] == first[row])
            rows[row, begins] = replicas[row, begins]
            if bootstrap:
                rows[row, begins] *= _relative_speeds(snapshot, jobs[row], columns)[begins]
    return rows


def _first_sizes(
    jobs: Sequence[PolicyJob], columns: SiaColumns, able: NDArray[np.bool_], replicas: Ints
) -> Ints:
    """Return devices of each job's smallest size by column's type; else those of a replica."""
    if all(job.terms.scale is None or job.least <= 1 for job in jobs):
        return replicas
    sizes = np.where(able, columns.sizes, _BOUNDS[-1])
    found = np.array(replicas)
    for kind in np.unique(columns.kinds):
        of_kind = columns.kinds == kind
        least = sizes[:, of_kind].min(axis=1)
        some = least < _BOUNDS[-1]
        found[np.ix_(some, of_kind)] = least[some, None]
    return found


def _by_bound(most: Ints) -> dict[int, Ints]:
    """Group jobs by the maximum useful devices, rounded to common steps."""
    if len(most) < _MANY:
        bound = next(bound for bound in _BOUNDS if bound >= min(most.max(), _BOUNDS[-1]))
        return {bound: np.arange(len(most))}
    bounds = np.array(_BOUNDS)[np.searchsorted(_BOUNDS, np.minimum(most, _BOUNDS[-1]))]
    return {int(bound): np.flatnonzero(bounds == bound) for bound in np.unique(bounds)}


def _relative_speeds(snapshot: Snapshot, job: PolicyJob, columns: SiaColumns) -> Floats:
    """Speed of one replica relative to the slowest type, by column."""
    speeds = np.array([snapshot.model.speed(job, name) for name in columns.types])
    slowest = speeds[speeds > 0.0].min(initial=np.inf)
    return np.asarray((speeds / slowest)[columns.kinds])


def _replicas(snapshot: Snapshot, jobs: Sequence[PolicyJob], columns: SiaColumns) -> Ints:
    """Return the devices of one replica, by job and column."""
    table = [[snapshot.model.replica(job, name) for name in columns.types] for job in jobs]
    return np.array(table, dtype=np.int64)[:, columns.kinds]


@lru_cache(maxsize=4_096)
def _permits(
    types: tuple[str, ...], scale: Scale | None, columns: SiaColumns
) -> NDArray[np.bool_]:
    allowed = [
        (not types or shape.type in types) and (scale is None or scale.allows(shape.devices))
        for shape in columns.shapes
    ]
    return np.array(allowed, dtype=np.bool_)


def _with_projections(
    snapshot: Snapshot, jobs: Sequence[PolicyJob], columns: SiaColumns, within_request: bool
) -> Floats:
    """Return goodputs of observed types, projections for other types, and 0 elsewhere."""
    model, infos = snapshot.model, [snapshot.pool.types.get(name) for name in columns.types]
    nodes = tuple(info.node_devices if info else 1 for info in infos)
    seen = seen_from_each(columns.types, columns.shapes, nodes)
    every = model.goodputs(jobs, seen.shapes, within_request=within_request)
    known: Floats = every[:, seen.own]
    groups: dict[int, list[int]] = defaultdict(list)
    for row, job in enumerate(jobs):
        ran = model.profiled(job)
        source = next((kind for kind, name in enumerate(columns.types) if name in ran), None)
        if source is not None and any(name not in ran for name in columns.types):
            groups[source].append(row)
    for source, rows in groups.items():
        some = [jobs[row] for row in rows]
        there = every[rows][:, seen.elsewhere[source]]
        projected = there * _ratios(snapshot, some, columns, source)
        target = known[rows]
        known[rows] = np.where(np.isnan(target), projected, target)
    return np.fmin(np.fmax(known, 0.0), _LARGEST)


def _ratios(
    snapshot: Snapshot, jobs: Sequence[PolicyJob], columns: SiaColumns, source: int
) -> Floats:
    """Return the speed ratio of each column's type to the source column's type, by job."""
    speeds = np.array(
        [[snapshot.model.speed(job, name) for name in columns.types] for job in jobs]
    )
    ratios: Floats = speeds / speeds[:, source, None]
    return ratios[:, columns.kinds]
