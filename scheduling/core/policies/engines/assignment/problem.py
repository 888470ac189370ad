"""The assignment problem as arrays, and its Lagrangian relaxation at given prices."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Relaxed(NamedTuple):
    """Every job's best choice when capacities are only paid for.

    Attributes:
        bound: on the objective, from above.
        picks: the column of each job.
        used: of each capacity.
        value: of the picks, without prices.
    """

    bound: float
    picks: Ints
    used: Floats
    value: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Maximise the sum of one value per row, where the columns' uses fit the capacities.

    Uses and capacities are whole numbers as floats: products with prices would copy integers each
    time, and up to 2**53 nothing is lost.

    Attributes:
        values: shape ``(jobs, 1 + choices)``; column 0 is no allocation, -inf is impossible.
        uses: shape ``(1 + choices, capacities)``.
        capacity: of each resource.
        thrift: deduction from the values for each device used.
        rows: 0, 1, ... once per job.
    """

    values: Floats
    uses: Floats
    capacity: Floats
    thrift: float
    rows: Ints

    @classmethod
    def of(cls, values: Floats, uses: Ints, capacity: Ints, thrift: float) -> "Problem":
        """Check the arrays and prepend the empty choice.

        Raises:
            ValueError: shapes do not match, a value is infinite, or a use or a capacity is
                negative.
        """
        values = np.asarray(values, dtype=np.float64)
        uses, capacity = np.asarray(uses, dtype=np.int64), np.asarray(capacity, dtype=np.int64)
        if values.ndim != 2 or uses.shape != (values.shape[1], len(capacity)):
            raise ValueError(
                f"values {values.shape}, uses {uses.shape} and {len(capacity)} capacities do not "
                "belong together"
            )
        if (uses < 0).any() or (capacity < 0).any():
            raise ValueError("a use or a capacity is negative")
        jobs, choices = values.shape
        full = np.zeros((jobs, choices + 1))
        possible = (values > -np.inf) & (uses <= capacity).all(axis=1)  # nan is not
        full[:, 1:] = np.where(possible, values, -np.inf)
        top = float(full.max(initial=0.0))
        if not np.isfinite(top):
            raise ValueError("a value is infinite")
        columns = np.zeros((choices + 1, len(capacity)))
        columns[1:] = uses
        each = thrift * top
        full -= each * columns.sum(axis=1)
        return cls(full, columns, capacity.astype(np.float64), each, np.arange(jobs))

    def worth(self, prices: Floats) -> Floats:
        """Values minus the cost of the uses, shape of ``values``."""
        worth: Floats = self.values - self.uses @ prices
        return worth

    def relaxed(self, prices: Floats) -> Relaxed:
        """Every job's best column at prices; of equals the first."""
        worth = self.worth(prices)
        picks = worth.argmax(axis=1)
        used = np.add.reduce(self.uses.take(picks, axis=0))
        net = float(worth[self.rows, picks].sum())
        return Relaxed(
            net + float(prices @ self.capacity), picks, used, net + float(prices @ used)
        )
