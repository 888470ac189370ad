"""The assignment problem as arrays, and its Lagrangian dual by cutting planes.

Each tried point gives one column (the total use of all jobs, and its value). A linear program over
these columns, with one row per capacity and one for the weights, gives the next prices. It is
solved by revised simplex steps on a basis of that size. Points between the best
prices so far and the program's damp its oscillation.
"""

from dataclasses import dataclass
from operator import mul
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_POINTS: Final = 120
_MOST_PIVOTS: Final = 200
_REDUCED: Final = 1e-9
#: Slopes of the basis up to this value count as zero.
_LEVEL: Final = 1e-12
#: Interval of attempts at the prices of the program instead of intermediate prices.
_DIRECT: Final = 4


class Relaxed(NamedTuple):
    """Every job's best choice at given prices of the capacities.

    Attributes:
        bound: upper bound of the objective.
        picks: the column of each job.
        used: use of each capacity.
        value: value of the picks, without prices.
    """

    bound: float
    picks: Ints
    used: Floats
    value: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem to maximise the sum of one value per row, with uses within the capacities.

    Uses and capacities are integers stored as floats, exact up to 2**53: products of integer
    arrays with prices would require copies.

    Attributes:
        values: array ``(jobs, 1 + choices)``; column 0: no allocation; -inf: impossible.
        uses: shape ``(1 + choices, capacities)``.
        capacity: capacity of each resource.
        thrift: deduction from the values for each device used.
        rows: indices 0, 1, ... of the jobs.
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
                f"values {values.shape}, uses {uses.shape} and {len(capacity)} capacities have "
                f"different shapes"
            )
        if (uses < 0).any() or (capacity < 0).any():
            raise ValueError("a use or a capacity is negative")
        jobs, choices = values.shape
        full = np.zeros((jobs, choices + 1))
        possible = (values > -np.inf) & (uses <= capacity).all(axis=1)  # False for NaN
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
        """Return values minus the cost of the uses, with the shape of ``values``."""
        worth: Floats = self.values - self.uses @ prices
        return worth

    def relaxed(self, prices: Floats) -> Relaxed:
        """Return every job's best column at the prices; the first in a tie."""
        worth = self.worth(prices)
        picks = worth.argmax(axis=1)
        used = np.add.reduce(self.uses.take(picks, axis=0))
        net = float(worth[self.rows, picks].sum())
        return Relaxed(
            net + float(prices @ self.capacity), picks, used, net + float(prices @ used)
        )


@dataclass(frozen=True, slots=True)
class Priced:
    """Solution of the dual within the tolerance.

    Attributes:
        prices: price of each capacity.
        relaxed: the relaxation there; its bound is the smallest one found.
        weights: weights, with sum 1, of relaxations that together just fit the capacities.
        picks: choices of those relaxations, one row each.
        fits: whether the relaxation fits and uses all priced capacity, and is thus optimal.
    """

    prices: Floats
    relaxed: Relaxed
    weights: Floats
    picks: tuple[Ints, ...]
    fits: bool = False

    def blend(self, problem: Problem, jobs: Ints) -> Floats:
        """Average use of each capacity over the weighted relaxations."""
        blend = np.zeros((len(jobs), len(problem.capacity)))
        for weight, picks in zip(self.weights.tolist(), self.picks, strict=True):
            blend += weight * problem.uses[picks[jobs]]
        return blend


class _Master:
    """The linear program over relaxations: slacks, the empty one, then the generated ones.

    It has few rows, so it uses plain lists: calls on arrays of four numbers cost more than the
    arithmetic.
    """

    def __init__(self, capacity: Floats) -> None:
        self._right = [*capacity.tolist(), 1.0]
        count = len(self._right)
        self._units = [[float(row == other) for other in range(count)] for row in range(count)]
        self._columns: list[list[float]] = []
        self._values: list[float] = []
        self._tried: list[Ints] = []
        self._basis = list(range(count))
        self._worth = [0.0] * count
        self._inverse = self._units.copy()
        self._at = self._right.copy()
        self._duals = [0.0] * count
        self._settled = True

    def add(self, relaxed: Relaxed) -> None:
        """Add a column."""
        self._columns.append([*relaxed.used.tolist(), 1.0])
        self._values.append(relaxed.value)
        self._tried.append(relaxed.picks)

    def solve(self) -> tuple[float, Floats]:
        """Solve the program; return its optimum and the prices of the capacities."""
        enters = self._newest() if self._settled else self._helpful(first=False)
        for step in range(_MOST_PIVOTS):
            if enters is None:
                break
            self._enter(enters)
            self._duals = [
                sum(map(mul, self._worth, row)) for row in zip(*self._inverse, strict=True)
            ]
            # Taking the first improvement avoids cycles.
            enters = self._helpful(first=step >= _MOST_PIVOTS // 2)
        self._settled = enters is None
        duals = self._duals
        prices = np.array([max(dual, 0.0) for dual in duals[:-1]])
        return sum(map(mul, duals, self._right)), prices

    def _newest(self) -> int | None:
        """Return the last added column if it improves the solution; no earlier one did."""
        gain = self._values[-1] - sum(map(mul, self._duals, self._columns[-1]))
        return len(self._right) + len(self._values) - 1 if gain > _REDUCED else None

    def _helpful(self, *, first: bool) -> int | None:
        """Return the column with the highest reduced cost, or the first with a positive one."""
        duals = self._duals
        reduced = [-dual for dual in duals]  # the first columns use one row each, with value 0
        reduced += [
            value - sum(map(mul, duals, column))
            for value, column in zip(self._values, self._columns, strict=True)
        ]
        most = max(reduced)
        if most <= _REDUCED:
            return None
        if first:
            most = next(gain for gain in reduced if gain > _REDUCED)
        return reduced.index(most)

    def _enter(self, index: int) -> None:
        """Exchange a column with the first one in the basis that reaches 0."""
        inverse, at, tried = self._inverse, self._at, index - len(self._right)
        column = self._columns[tried] if tried >= 0 else self._units[index]
        direction = [sum(map(mul, row, column)) for row in inverse]
        step, leaves = np.inf, 0
        for row, slope in enumerate(direction):
            if slope > _LEVEL and at[row] < step * slope:
                step, leaves = at[row] / slope, row
        pivot = [entry / direction[leaves] for entry in inverse[leaves]]
        for row, slope in enumerate(direction):
            if slope:
                mine = zip(inverse[row], pivot, strict=True)
                inverse[row] = [entry - slope * other for entry, other in mine]
        inverse[leaves] = pivot
        self._basis[leaves] = index
        self._worth[leaves] = self._values[tried] if tried >= 0 else 0.0
        self._at = [sum(map(mul, row, self._right)) for row in inverse]

    def weights(self, nothing: Ints) -> tuple[Floats, tuple[Ints, ...]]:
        """Return the relaxations in the basis with their weights."""
        rows = len(self._right)
        weights, picks = [], []
        for index, weight in zip(self._basis, self._at, strict=True):
            if index >= rows - 1 and weight > 0.0:
                weights.append(weight)
                picks.append(nothing if index < rows else self._tried[index - rows])
        return np.array(weights), tuple(picks)


def find_prices(problem: Problem, start: Floats | None, tolerance: float) -> Priced:
    """Find the prices with the lowest bound of the relaxation.

    Args:
        problem: the problem.
        start: initial prices, such as those of the previous round; None for 0.
        tolerance: the relative distance from the lowest bound at which to stop.
    """
    best_at = np.zeros(len(problem.capacity)) if start is None else np.maximum(start, 0.0)
    master, best, point = _Master(problem.capacity), None, best_at
    for tried in range(1, _MOST_POINTS + 1):
        relaxed = problem.relaxed(point)
        if best is None or relaxed.bound < best.bound:
            best, best_at = relaxed, point
        if relaxed.bound <= relaxed.value and (relaxed.used <= problem.capacity).all():
            return Priced(point, relaxed, np.ones(1), (relaxed.picks,), fits=True)
        master.add(relaxed)
        lowest, prices = master.solve()
        if best.bound - lowest <= tolerance * abs(lowest):
            break
        point = prices if tried == 1 or tried % _DIRECT == 0 else 0.5 * (prices + best_at)
    assert best is not None  # noqa: S101  there is at least one point
    nothing = np.zeros(len(problem.values), dtype=np.int64)
    return Priced(best_at, best, *master.weights(nothing))
