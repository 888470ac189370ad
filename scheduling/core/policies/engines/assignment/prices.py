"""Prices of capacities: the Lagrangian dual by cutting planes, with a basis of a few columns.

Every point that is tried gives one column (what all jobs together would take there, and what that
is worth); a linear program over those columns, with one row per capacity and one for their
weights, gives the next prices. It is solved by revised simplex steps on a basis of that size.
Points between the best prices so far and the program's keep it from swinging.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduling.core.policies.engines.assignment.problem import Floats, Ints, Problem, Relaxed

_MOST_POINTS: Final = 120
_MOST_PIVOTS: Final = 200
_REDUCED: Final = 1e-9
#: How often the program's own prices are tried instead of a point on the way to them.
_DIRECT: Final = 4


@dataclass(frozen=True, slots=True)
class Priced:
    """The dual as far as it was solved.

    Attributes:
        prices: of each capacity.
        relaxed: the relaxation there; its bound is the least that was found.
        weights: of some relaxations, adding up to 1, that together just fit the capacities.
        picks: of those relaxations, one row each.
    """

    prices: Floats
    relaxed: Relaxed
    weights: Floats
    picks: tuple[Ints, ...]

    def blend(self, problem: Problem, job: int) -> Floats:
        """What a job takes of each capacity on average over the weighted relaxations."""
        columns = [int(picks[job]) for picks in self.picks]
        blend: Floats = self.weights @ problem.uses[columns]
        return blend


class _Master:
    """The linear program over relaxations: slacks first, then nothing at all, then the tried."""

    def __init__(self, capacity: Ints) -> None:
        rows = len(capacity) + 1
        self._columns = np.zeros((rows, rows + _MOST_POINTS))
        self._values = np.zeros(rows + _MOST_POINTS)
        self._columns[:, :rows] = np.eye(rows)
        self._right = np.append(capacity.astype(np.float64), 1.0)
        self._basis = np.arange(rows)
        self._inverse = np.eye(rows)
        self._tried: list[Ints] = []
        self._at = self._right.copy()

    def add(self, relaxed: Relaxed) -> None:
        """One more column."""
        index = len(self._right) + len(self._tried)
        self._columns[:-1, index] = relaxed.used
        self._columns[-1, index] = 1.0
        self._values[index] = relaxed.value
        self._tried.append(relaxed.picks)

    def solve(self) -> tuple[float, Floats]:
        """Its optimum, and the prices of the capacities."""
        rows = len(self._right)
        columns = self._columns[:, : rows + len(self._tried)]
        values = self._values[: rows + len(self._tried)]
        for step in range(_MOST_PIVOTS):
            duals = values[self._basis] @ self._inverse
            reduced = values - duals @ columns
            if step < _MOST_PIVOTS // 2:
                enters = int(reduced.argmax())
            else:  # the first that helps cannot go round in circles
                enters = int((reduced > _REDUCED).argmax())
            if reduced[enters] <= _REDUCED:
                break
            self._enter(enters, self._inverse @ columns[:, enters])
        return float(duals @ self._right), np.maximum(duals[:-1], 0.0)

    def _enter(self, index: int, direction: Floats) -> None:
        """Put a column into the basis for the first one that reaches 0."""
        rising = direction > 1e-12
        ratio = np.full(len(direction), np.inf)
        ratio[rising] = self._at[rising] / direction[rising]
        leaves = int(ratio.argmin())
        pivot = self._inverse[leaves] / direction[leaves]
        self._inverse -= direction[:, None] * pivot
        self._inverse[leaves] = pivot
        self._basis[leaves] = index
        self._at = self._inverse @ self._right

    def weights(self, nothing: Ints) -> tuple[Floats, tuple[Ints, ...]]:
        """The relaxations in the basis with their weights."""
        rows = len(self._right)
        weights, picks = [], []
        for index, weight in zip(self._basis.tolist(), self._at.tolist(), strict=True):
            if index >= rows - 1 and weight > 0.0:
                weights.append(weight)
                picks.append(nothing if index < rows else self._tried[index - rows])
        return np.array(weights), tuple(picks)


def find_prices(problem: Problem, start: Floats | None, tolerance: float) -> Priced:
    """Prices at which the relaxation's bound is as low as it gets.

    Args:
        problem: the problem.
        start: where to begin, such as the prices of the round before; None: at 0.
        tolerance: the relative distance from the lowest bound at which to stop.
    """
    best_at = np.zeros(len(problem.capacity)) if start is None else np.maximum(start, 0.0)
    master, best, point = _Master(problem.capacity), None, best_at
    for tried in range(1, _MOST_POINTS + 1):
        relaxed = problem.relaxed(point)
        if best is None or relaxed.bound < best.bound:
            best, best_at = relaxed, point
        if (relaxed.used <= problem.capacity).all() and relaxed.bound <= relaxed.value:
            return Priced(point, relaxed, np.ones(1), (relaxed.picks,))
        master.add(relaxed)
        lowest, prices = master.solve()
        if best.bound - lowest <= tolerance * abs(lowest):
            break
        point = prices if tried == 1 or tried % _DIRECT == 0 else 0.5 * (prices + best_at)
    assert best is not None  # noqa: S101  there is at least one point
    nothing = np.zeros(len(problem.values), dtype=np.int64)
    return Priced(best_at, best, *master.weights(nothing))
