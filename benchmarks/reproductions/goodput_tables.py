"""Goodput of many jobs on many shapes, evaluated at once, with ``core.performance.goodput``."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from scheduling.core.performance.goodput import (
    SMALLEST,
    BatchLimits,
    Candidates,
    Floats,
    Noise,
    Throughput,
    candidates,
)


@lru_cache(maxsize=8_192)
def stacked(limits: BatchLimits, devices: tuple[int, ...]) -> Candidates:
    """Build the ``candidates`` of several sizes."""
    tables = [candidates(limits, count) for count in devices]
    return Candidates(
        local_batch=np.stack([table.local_batch for table in tables]),
        accumulation=np.stack([table.accumulation for table in tables]),
        inverse_scale=np.stack([table.inverse_scale for table in tables]),
        blocked=np.stack([table.blocked for table in tables]),
    )


def candidate_step_times(
    models: Sequence[Throughput],
    tables: Sequence[Candidates],
    sizes: Sequence[tuple[tuple[int, int], ...]],
) -> list[Floats]:
    """Return seconds of a step for every candidate, shape ``(shapes, samples)`` per model.

    Infinite where the limits forbid it. All of them are evaluated at once.

    Args:
        models: the fitted constants of each job.
        tables: each job's candidates on its shapes.
        sizes: nodes and devices of each job's shapes.
    """
    counts = [len(shapes) for shapes in sizes]
    constants = np.repeat(np.array(models, dtype=np.float64), counts, axis=0).T
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = constants
    nodes, devices = np.concatenate([_counted(shapes) for shapes in sizes]).T
    beyond = np.maximum(devices - 2, SMALLEST)
    inside = np.where(devices > 1, alpha_r + beta_r * beyond, SMALLEST + SMALLEST * beyond)
    exchange = np.where(nodes > 1, alpha_n + beta_n * beyond, inside)[:, None]
    passes = np.concatenate([table.local_batch for table in tables])
    passes *= beta_c[:, None]
    passes += alpha_c[:, None]
    times = passes + exchange
    overlaps = (gamma != 1.0).nonzero()[0]  # in many fits nothing does, and powers take longest
    if len(overlaps):
        power = gamma[overlaps, None]
        times[overlaps] = (passes[overlaps] ** power + exchange[overlaps] ** power) ** (
            1.0 / power
        )
    passes *= np.concatenate([table.accumulation for table in tables])
    times += passes
    times[np.concatenate([table.blocked for table in tables])] = np.inf
    return _parted(times, counts)


@lru_cache(maxsize=1_024)
def _counted(
    shapes: tuple[tuple[int, int], ...],
) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    """Return the nodes and devices of some shapes as an array."""
    return np.array(shapes, dtype=np.int64).reshape(-1, 2)


def best_goodputs(
    times: Sequence[Floats], tables: Sequence[Candidates], noises: Sequence[Noise]
) -> list[Floats]:
    """Return the best goodput of each job on each of its shapes; 0 where nothing is allowed.

    The ratio of gain to step time is largest where its inverse is smallest.
    """
    counts = [len(mine) for mine in times]
    sqr, var = np.repeat(np.array(noises, dtype=np.float64), counts, axis=0).T
    slowness = np.concatenate([table.inverse_scale for table in tables])
    slowness *= var[:, None]
    slowness += sqr[:, None]
    slowness *= np.concatenate(times)
    return _parted((var + sqr) / slowness.min(axis=1), counts)


def _parted(lines: Floats, counts: Sequence[int]) -> list[Floats]:
    """Split the lines by job."""
    ends = list(accumulate(counts))
    return [lines[end - count : end] for end, count in zip(ends, counts, strict=True)]
