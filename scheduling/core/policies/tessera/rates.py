"""Rates of each job at each size, with priors for unmeasured sizes.

A job that has not run yet is judged by one device's speed on each type and by the gang that its
owner asked for; a type on which it has not run, by the ratio of speeds to one on which it has.
Fits are optimistic about sizes that were never tried, so those are discounted.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policies.engines.projecting import seen_from_each
from scheduling.core.policies.tessera.columns import Flags, SizeColumns
from scheduling.core.policy_interface import PolicyJob, Snapshot

Floats = NDArray[np.float64]
#: Beyond the requested gang, an unmeasured job is assumed to gain little.
_BEYOND_GANG: Final = 0.3


@dataclass(frozen=True, slots=True)
class Rates:
    """Useful steps per second.

    Attributes:
        table: shape ``(jobs, columns)``; 0 where a job cannot be.
        known: jobs whose rates are in steps; the others' are only relative to each other.
        least: of each job at its least size, on the type that is best for it.
        asked: likewise at the requested size, or at the next smaller one.
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
    """The model's goodputs, filled in and discounted without observations.

    Args:
        snapshot: for pool and model.
        jobs: one row each.
        columns: one column each.
        allowed: columns that each job may have.
        scaling: the power of the size with which a job is taken to speed up before it has run.
        unseen: the power with which sizes that do not count as tried are discounted.
        spread: the factor for several nodes if a job was only measured on one.
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
    """Speeds that grow with the size up to the gang, and little beyond."""
    sizes = columns.sizes.astype(np.float64)[None, :]
    growth = np.minimum(sizes, gangs) ** scaling * np.maximum(sizes / gangs, 1.0) ** _BEYOND_GANG
    rates: Floats = speeds[:, columns.kinds] * growth
    return rates


def _least(table: Floats, columns: SizeColumns) -> Floats:
    """The best rate at the least size at which a job can run."""
    sizes = np.where(table > 0.0, columns.sizes, np.iinfo(np.int64).max)
    smallest = sizes.min(axis=1, initial=np.iinfo(np.int64).max)[:, None]
    least: Floats = np.where(sizes == smallest, table, 0.0).max(axis=1, initial=0.0)
    return least


def _asked(table: Floats, columns: SizeColumns, gangs: NDArray[np.int64]) -> Floats:
    """The best rate at the largest size up to the gang's."""
    within = np.where((table > 0.0) & (columns.sizes <= gangs), columns.sizes, 0)
    largest = within.max(axis=1, initial=0)[:, None]
    at = np.where(largest > 0, within == largest, table > 0.0)
    asked: Floats = np.where(at, table, 0.0).max(axis=1, initial=0.0)
    return asked


def _nodes(snapshot: Snapshot, columns: SizeColumns) -> tuple[int, ...]:
    """Devices of a node, by type."""
    infos = [snapshot.pool.types.get(name) for name in columns.types]
    largest = int(columns.sizes.max(initial=1))
    return tuple(info.node_devices if info is not None else largest for info in infos)
