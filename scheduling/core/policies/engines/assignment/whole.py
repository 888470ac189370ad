"""The whole problem solved by HiGHS: the fallback, and the check of the decomposition."""

from typing import Any, Final

import numpy as np
import scipy  # its parts are loaded when a program is solved, not when the portal starts
from numpy.typing import NDArray

from scheduling.core.policies.engines.assignment.problem import Floats, Ints

_TIME_LIMIT: Final = 30.0


class NoSolutionError(RuntimeError):
    """The solver found no answer within its limits."""


def solve_whole(
    values: Floats, uses: Ints, capacity: Ints, *, gap: float = 1e-4
) -> tuple[Ints, float]:
    """Each job's choice (-1: none), and an upper bound on the value of all choices.

    Args:
        values: shape ``(jobs, choices)``; only positive ones are ever chosen.
        uses: shape ``(choices, capacities)``.
        capacity: of each resource.
        gap: the relative distance from the optimum at which the search may stop.

    Raises:
        NoSolutionError: the solver gave up.
    """
    chosen: Ints = np.full(len(values), -1, dtype=np.int64)
    jobs, choices = np.nonzero((values > 0.0) & (uses <= capacity).all(axis=1))
    if not len(jobs):
        return chosen, 0.0
    found: Any = scipy.optimize.milp(
        -values[jobs, choices],
        integrality=np.ones(len(jobs)),
        bounds=scipy.optimize.Bounds(0, 1),
        constraints=_constraints(jobs, uses[choices], capacity, len(values)),
        options={"mip_rel_gap": gap, "time_limit": _TIME_LIMIT},
    )
    if found.x is None:
        raise NoSolutionError(f"no choice for {len(values)} jobs: {found.message}")
    taken = found.x > 0.5
    chosen[jobs[taken]] = choices[taken]
    return chosen, -float(found.mip_dual_bound)


def _constraints(jobs: NDArray[np.intp], uses: Ints, capacity: Ints, count: int) -> Any:
    """One choice per job, and the capacities."""
    columns, resources = np.nonzero(uses)
    rows = np.concatenate([jobs, count + resources])
    factors = np.concatenate([np.ones(len(jobs)), uses[columns, resources].astype(np.float64)])
    places = np.concatenate([np.arange(len(jobs)), columns])
    matrix = scipy.sparse.csc_array(
        (factors, (rows, places)), shape=(count + len(capacity), len(jobs))
    )
    upper = np.concatenate([np.ones(count), capacity.astype(np.float64)])
    return scipy.optimize.LinearConstraint(matrix, -np.inf, upper)
