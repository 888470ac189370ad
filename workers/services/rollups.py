"""Roll-ups of a series of points: buckets, their folding, packing and thinning. Pure.

A bucket of level n holds ``FAN ** n`` points. All columns of a block are compressed together.
"""

import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from workers.services.points import Sample

BLOCK: Final = 512
"""Buckets of a block."""
FAN: Final = 8
"""Buckets that are folded to one of the next level."""
BUCKET: Final = np.dtype(
    [
        ("step", "<i8"),
        ("time", "<f8"),
        ("epoch", "<f8"),
        ("attempt", "<u4"),
        ("count", "<u4"),
        ("bad", "<u4"),
        ("low", "<f8"),
        ("high", "<f8"),
        ("total", "<f8"),
    ]
)
"""Step, time, epoch and attempt of the last point; numbers of finite and other points; least,
greatest and sum of the finite ones, or the last value if none is finite."""
Buckets = npt.NDArray[np.void]


def buckets_of(samples: Sequence[Sample], *, attempt: int) -> Buckets:
    """Return a bucket for each point."""
    found = np.zeros(len(samples), BUCKET)
    columns = np.array(samples, np.float64).reshape(-1, 4).T
    value = columns[3]
    is_finite = np.isfinite(value)
    found["step"] = [sample.step for sample in samples]
    found["time"], found["epoch"], found["attempt"] = columns[1], columns[2], attempt
    found["count"], found["bad"] = is_finite, ~is_finite
    found["low"] = found["high"] = found["total"] = value
    return found


def fold(buckets: Buckets, width: int) -> Buckets:
    """Fold each ``width`` buckets to one; the last one may have fewer."""
    if width <= 1 or not len(buckets):
        return buckets
    starts = np.arange(0, len(buckets), width)
    return _folded(buckets, starts)


def _folded(buckets: Buckets, starts: npt.NDArray[np.int64]) -> Buckets:
    lasts = np.append(starts[1:], len(buckets)) - 1
    found: Buckets = buckets[lasts]
    is_finite = buckets["count"] > 0
    found["count"] = np.add.reduceat(buckets["count"], starts)
    found["bad"] = np.add.reduceat(buckets["bad"], starts)
    known = found["count"] > 0
    low = np.minimum.reduceat(np.where(is_finite, buckets["low"], np.inf), starts)
    high = np.maximum.reduceat(np.where(is_finite, buckets["high"], -np.inf), starts)
    with np.errstate(over="ignore"):
        total = np.add.reduceat(np.where(is_finite, buckets["total"], 0.0), starts)
    found["low"] = np.where(known, low, found["low"])
    found["high"] = np.where(known, high, found["high"])
    found["total"] = np.where(known, total, found["total"])
    return found


def pack(buckets: Buckets) -> bytes:
    """Compress a block, column by column."""
    columns = b"".join(np.ascontiguousarray(buckets[name]).tobytes() for name in _names())
    return zlib.compress(columns, 1)


def unpack(packed: bytes | memoryview, size: int) -> Buckets:
    """Return the buckets of a block of this size.

    Raises:
        ValueError: the block is damaged.
    """
    try:
        columns = zlib.decompress(bytes(packed))
    except zlib.error as error:
        raise ValueError(f"damaged block: {error}") from None
    found, offset = np.zeros(size, BUCKET), 0
    for name in _names():
        column = BUCKET[name]
        found[name] = np.frombuffer(columns, column, size, offset)
        offset += size * column.itemsize
    return found


def _names() -> tuple[str, ...]:
    return BUCKET.names or ()


def superseded(buckets: Buckets, *, later_least: int | None = None) -> npt.NDArray[np.bool_]:
    """Return which buckets are superseded: a later one has the same or a lower step.

    Later means a newer attempt, or of the same attempt a later arrival.

    Args:
        buckets: sorted by attempt, then by arrival.
        later_least: smallest step of all points after these, if any.
    """
    if not len(buckets):
        return np.zeros(0, np.bool_)
    after = np.append(buckets["step"][1:], _NEVER if later_least is None else later_least)
    least: npt.NDArray[np.int64] = np.minimum.accumulate(after[::-1])[::-1]
    found: npt.NDArray[np.bool_] = least <= buckets["step"]
    return found


_NEVER: Final = np.iinfo(np.int64).max


def thin(buckets: Buckets, most: int, kinds: npt.NDArray[Any]) -> tuple[Buckets, Any]:
    """Fold to about ``most`` buckets; no bucket spans two kinds.

    Args:
        buckets: to fold.
        most: their number afterwards, as far as the changes of kind allow.
        kinds: a value for each bucket.

    Returns:
        The folded buckets and their kinds.
    """
    if len(buckets) <= most:
        return buckets, kinds
    changes = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    width = -(-len(buckets) // max(1, most - min(len(changes), most // 2)))
    starts = np.union1d(np.arange(0, len(buckets), width), changes)
    return _folded(buckets, starts), kinds[starts]


def means(buckets: Buckets) -> npt.NDArray[np.float64]:
    """Return the mean of each bucket; not finite if it has no finite point."""
    with np.errstate(invalid="ignore"):
        found: npt.NDArray[Any] = buckets["total"] / np.maximum(buckets["count"], 1)
    return found
