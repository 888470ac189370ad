"""Linear and mixed-integer programs, built row by row and solved by HiGHS."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy  # loads its submodules when a program is solved, not at the start of the portal

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class InfeasibleError(ValueError):
    """No point satisfies all rows, or the objective has no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """An optimal solution.

    Attributes:
        x: values of the variables.
        value: value of the maximised objective.
        prices: dual value (shadow price) of each row, 0 for a row that is not binding; linear
            programs only.
    """

    x: Floats
    value: float
    prices: Floats


@dataclass(slots=True)
class LinearProgram:
    """Maximise a linear function of bounded variables below rows of upper bounds."""

    _lower: list[Floats] = field(default_factory=list)
    _upper: list[Floats] = field(default_factory=list)
    _integral: list[bool] = field(default_factory=list)
    _columns: list[Ints] = field(default_factory=list)
    _factors: list[Floats] = field(default_factory=list)
    _bounds: list[float] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of variables."""
        return len(self._integral)

    def variables(
        self,
        count: int,
        *,
        lower: float = 0.0,
        upper: float | Floats = np.inf,
        integral: bool = False,
    ) -> Ints:
        """Add ``count`` variables and return their numbers."""
        first = self.size
        self._lower.append(np.full(count, lower, dtype=np.float64))
        self._upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), count).copy())
        self._integral.extend([integral] * count)
        return np.arange(first, first + count, dtype=np.int64)

    def at_most(self, columns: Sequence[int] | Ints, factors: Floats, bound: float) -> int:
        """Add the row ``factors . x[columns] <= bound`` and return its number."""
        self._columns.append(np.asarray(columns, dtype=np.int64))
        self._factors.append(np.broadcast_to(np.asarray(factors, dtype=np.float64), len(columns)))
        self._bounds.append(float(bound))
        return len(self._bounds) - 1

    def at_least(self, columns: Sequence[int] | Ints, factors: Floats, bound: float) -> int:
        """Add the row ``factors . x[columns] >= bound`` and return its number."""
        return self.at_most(columns, -np.asarray(factors, dtype=np.float64), -bound)

    def maximise(self, columns: Sequence[int] | Ints, factors: Floats) -> Solution:
        """Solve the program.

        Raises:
            InfeasibleError: no optimum exists.
        """
        costs = np.zeros(self.size)
        np.add.at(costs, np.asarray(columns, dtype=np.int64), -np.asarray(factors))
        lower, upper = np.concatenate(self._lower), np.concatenate(self._upper)
        if any(self._integral):
            return self._solve_integral(costs, lower, upper)
        rows = self._matrix() if self._bounds else None
        found = scipy.optimize.linprog(
            costs,
            A_ub=rows,
            b_ub=self._bounds or None,
            bounds=np.column_stack((lower, upper)),
            method="highs",
        )
        if found.status != 0:
            raise InfeasibleError(found.message)
        prices = -found.ineqlin.marginals if self._bounds else np.zeros(0)
        return Solution(x=found.x, value=-found.fun, prices=prices)

    def _solve_integral(self, costs: Floats, lower: Floats, upper: Floats) -> Solution:
        rows = (
            [scipy.optimize.LinearConstraint(self._matrix(), ub=np.asarray(self._bounds))]
            if self._bounds
            else []
        )
        found = scipy.optimize.milp(
            costs,
            constraints=rows,
            bounds=(lower, upper),
            integrality=np.asarray(self._integral, dtype=np.int64),
        )
        if found.status != 0:
            raise InfeasibleError(found.message)
        return Solution(x=found.x, value=-found.fun, prices=np.zeros(len(self._bounds)))

    def _matrix(self) -> "scipy.sparse.csr_array":
        lengths = [len(columns) for columns in self._columns]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        return scipy.sparse.csr_array(
            (np.concatenate(self._factors), np.concatenate(self._columns), starts),
            shape=(len(self._bounds), self.size),
        )
