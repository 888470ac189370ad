"""The rows of Sia's matrix: each job's goodput at every configuration, over its smallest one.

Where a job has not run on a type its goodput there is projected from a type on which it has, by
the ratio of throughputs on one device (section 3.2, bootstrapping).
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduling.core.planning import PolicyJob, Scale, Snapshot
from scheduling.core.policies.sia.columns import Columns, Ints

Floats = NDArray[np.float64]
#: In place of a goodput where a job cannot be.
NOTHING = 1e-4
_BOUNDS = (4, 16, 1 << 30)
#: Jobs from which on it pays to look at small and large ones apart.
_MANY = 48


def scaled_goodputs(
    snapshot: Snapshot,
    jobs: Sequence[PolicyJob],
    columns: Columns,
    *,
    limits: Sequence[int],
    within_request: bool,
    bootstrap: bool,
) -> Floats:
    """Goodputs, shape ``(jobs, columns)``, with 1 at each job's least useful size.

    Args:
        snapshot: pool and model.
        jobs: one row each.
        columns: the configurations.
        limits: the most replicas that each job may have.
        within_request: estimate for batches up to the requested one only.
        bootstrap: judge a job that has not run yet by one replica's speed on each type.
    """
    if not jobs or not columns.shapes:
        return np.zeros((len(jobs), len(columns.shapes)))
    replicas = _replicas(snapshot, jobs, columns)
    most = np.array(limits, dtype=np.int64)[:, None] * replicas
    sizes = columns.sizes[None, :]
    allowed = (sizes >= replicas) & (sizes <= most) & (sizes % replicas == 0)
    allowed &= _permitted(jobs, columns)
    known = np.zeros(allowed.shape)
    for bound, some_rows in _by_bound(most.max(axis=1)).items():
        few, places = columns.up_to(bound)
        some_jobs = [jobs[row] for row in some_rows]
        found = _with_projections(snapshot, some_jobs, few, within_request)
        known[some_rows[:, None], places] = found
    known[~(allowed & (known > 0.0))] = np.inf
    places = known.argmin(axis=1)[:, None]
    least = np.take_along_axis(known, places, axis=1)
    some = np.isfinite(least)
    unit = np.take_along_axis(replicas, places, axis=1) / np.where(some, least, 1.0)
    rows = np.where(np.isfinite(known), np.maximum(known * unit, NOTHING), NOTHING)
    for row in np.flatnonzero(~some[:, 0]).tolist():
        if not snapshot.model.profiled(jobs[row]):
            first = allowed[row] & (sizes[0] == replicas[row])
            rows[row, first] = replicas[row, first]
            if bootstrap:
                rows[row, first] *= _relative_speeds(snapshot, jobs[row], columns)[first]
    return rows


def _by_bound(most: Ints) -> dict[int, Ints]:
    """Jobs by the devices up to which their goodputs are of use, in steps that many share."""
    bounds = np.array(_BOUNDS)[np.searchsorted(_BOUNDS, np.minimum(most, _BOUNDS[-1]))]
    if len(most) < _MANY:
        bounds[:] = bounds.max()
    return {int(bound): np.flatnonzero(bounds == bound) for bound in np.unique(bounds)}


def _relative_speeds(snapshot: Snapshot, job: PolicyJob, columns: Columns) -> Floats:
    """How much faster than on the slowest type one replica is, by column."""
    speeds = np.array([snapshot.model.speed(job, name) for name in columns.types])
    slowest = speeds[speeds > 0.0].min(initial=np.inf)
    return np.asarray((speeds / slowest)[columns.kinds])


def _replicas(snapshot: Snapshot, jobs: Sequence[PolicyJob], columns: Columns) -> Ints:
    """Devices of one replica, by job and column."""
    table = [[snapshot.model.replica(job, name) for name in columns.types] for job in jobs]
    return np.array(table, dtype=np.int64)[:, columns.kinds]


def _permitted(jobs: Sequence[PolicyJob], columns: Columns) -> NDArray[np.bool_]:
    """Columns whose type and size the owner allows."""
    permitted = np.ones((len(jobs), len(columns.shapes)), dtype=np.bool_)
    found: dict[tuple[tuple[str, ...], Scale | None], NDArray[np.bool_]] = {}
    for row, job in enumerate(jobs):
        key = job.types, job.terms.scale
        if key not in found:
            found[key] = _permits(*key, columns)
        permitted[row] = found[key]
    return permitted


def _permits(types: tuple[str, ...], scale: Scale | None, columns: Columns) -> NDArray[np.bool_]:
    allowed = [
        (not types or shape.type in types) and (scale is None or scale.allows(shape.devices))
        for shape in columns.shapes
    ]
    return np.array(allowed, dtype=np.bool_)


def _with_projections(
    snapshot: Snapshot, jobs: Sequence[PolicyJob], columns: Columns, within_request: bool
) -> Floats:
    """Goodputs where the job has run on the type, projections elsewhere, nan where neither."""
    model = snapshot.model
    known = model.goodputs(jobs, columns.shapes, within_request=within_request)
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for row, job in enumerate(jobs):
        seen = model.profiled(job)
        source = next((name for name in columns.types if name in seen), None)
        if source is not None and len(seen) < len(columns.types):
            groups[source, tuple(name for name in columns.types if name not in seen)].append(row)
    for (source, unseen), rows in groups.items():
        info = snapshot.pool.types.get(source)
        shapes, index = columns.seen_from(source, info.node_devices if info else 1, unseen)
        if not shapes:
            continue
        some = [jobs[row] for row in rows]
        from_source = model.goodputs(some, shapes, within_request=within_request)[:, index]
        projected = from_source * _ratios(snapshot, some, columns, source)
        projected[:, index < 0] = np.nan
        target = known[rows]
        known[rows] = np.where(np.isnan(target), projected, target)
    return np.nan_to_num(known)


def _ratios(
    snapshot: Snapshot, jobs: Sequence[PolicyJob], columns: Columns, source: str
) -> Floats:
    """Speeds on each column's type over that on another one, by job."""
    speeds = np.array(
        [[snapshot.model.speed(job, name) for name in columns.types] for job in jobs]
    )
    ratios: Floats = speeds / speeds[:, columns.types.index(source), None]
    return ratios[:, columns.kinds]
