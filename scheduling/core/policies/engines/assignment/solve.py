"""Assignment of one choice per job under capacities, by prices and the core, or by HiGHS alone."""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import scipy  # loads its submodules when a program is solved, not at the start of the portal
from numpy.typing import NDArray

from scheduling.core.policies.engines.assignment.relaxation import (
    Floats,
    Ints,
    Priced,
    Problem,
    find_prices,
)
from scheduling.core.policies.engines.assignment.search import Core, SearchResult, repair, search

_TIME_LIMIT: Final = 30.0

_FIRST_BEAM: Final = 256
_WIDEST_BEAM: Final = 65_536
#: Jobs that may be contested in the first search; three times as many in each further one.
_FIRST_CORE: Final = 24
_WIDER: Final = 4.0
_SMALLEST: Final = 1e-9
#: Prices are sought to within this part of a job's worth: a search has to follow anyway.
_NEAR: Final = 0.02


class NoSolutionError(RuntimeError):
    """The solver found no solution within its limits."""


def solve_whole(
    values: Floats, uses: Ints, capacity: Ints, *, gap: float = 1e-4
) -> tuple[Ints, float]:
    """Solve completely by HiGHS: each job's choice (-1 for none), and an upper bound of the value.

    Args:
        values: shape ``(jobs, choices)``; only positive values are chosen.
        uses: shape ``(choices, capacities)``.
        capacity: capacity of each resource.
        gap: relative gap to the optimum at which the search may stop.

    Raises:
        NoSolutionError: the solver found no solution.
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
    """Build the constraints: one choice per job, and the capacities."""
    columns, resources = np.nonzero(uses)
    rows = np.concatenate([jobs, count + resources])
    factors = np.concatenate([np.ones(len(jobs)), uses[columns, resources].astype(np.float64)])
    places = np.concatenate([np.arange(len(jobs)), columns])
    matrix = scipy.sparse.csc_array(
        (factors, (rows, places)), shape=(count + len(capacity), len(jobs))
    )
    upper = np.concatenate([np.ones(count), capacity.astype(np.float64)])
    return scipy.optimize.LinearConstraint(matrix, -np.inf, upper)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSolution:
    """A solution with its certificate.

    Attributes:
        choices: choice of each job; -1 for none.
        value: total value of the choices.
        bound: upper bound on the value of any solution.
        prices: price of each capacity; the initial prices of the next round.
        exact: whether the search was complete, so that no better solution exists (beyond the
            preference for fewer devices).
    """

    choices: Ints
    value: float
    bound: float
    prices: Floats
    exact: bool

    @property
    def gap(self) -> float:
        """The relative distance from the bound."""
        return (self.bound - self.value) / self.bound if self.bound > 0.0 else 0.0


def assign(
    values: Floats,
    uses: Ints,
    capacity: Ints,
    *,
    prices: Floats | None = None,
    gap: float = 1e-3,
    thrift: float = 1e-7,
) -> AssignmentSolution:
    """Choose at most one column for each job so that all fit, with the largest total value.

    The solution is optimal or within ``gap`` of the returned bound. Of solutions with equal value,
    the one with less use is taken, then one by the order of jobs and columns. Equal arguments
    give equal solutions.

    Args:
        values: shape ``(jobs, choices)``; -inf or nan where a job cannot have a choice, and only
            values above 0 are chosen.
        uses: shape ``(choices, capacities)``: use of each choice.
        capacity: total of each resource.
        prices: start values from an earlier solution; they affect only the speed, not the bounds.
        gap: relative gap to the optimum at which the search stops.
        thrift: value of a device, as a part of the largest value.

    Raises:
        ValueError: shapes do not match, a value is infinite, a use or a capacity is negative.
        NoSolutionError: neither the search nor HiGHS reached the gap.
    """
    problem = Problem.of(values, uses, capacity, thrift)
    priced = find_prices(problem, prices, max(gap / 10.0, _NEAR / (1 + len(problem.values))))
    found = _found(problem, priced, gap)
    if found is None:
        return _whole(problem, priced, np.asarray(values), gap)
    return _assignment(problem, priced, found)


def _found(problem: Problem, priced: Priced, gap: float) -> SearchResult | None:
    """Find a quick solution, then search larger and larger cores for a better one.

    The result is None if even wide searches had to cut off too much.
    """
    bound = priced.relaxed.bound
    if priced.fits:
        return SearchResult(0.0, priced.relaxed.picks, complete=True)
    core = Core.of(problem, priced)
    best, near, slack = repair(core), gap * bound, _SMALLEST * bound
    if best.loss <= slack:
        return replace(best, complete=True)
    contested, beam = _FIRST_CORE, _FIRST_BEAM
    allowed = _loss_of(core, contested)
    if best.loss <= near and allowed < best.loss:
        return best
    while beam <= _WIDEST_BEAM:
        allowed = min(allowed, best.loss + slack)
        found = search(core, allowed, beam)
        if found.loss <= best.loss:
            best = found
        if found.complete and (found.loss < np.inf or allowed >= best.loss):
            return replace(best, complete=True)
        if best.loss <= near:
            return best
        if not found.complete and (found.loss < np.inf or allowed >= best.loss):
            beam *= 4
        contested *= 3
        wider = _loss_of(core, contested)
        allowed = max(allowed * _WIDER, wider if wider < np.inf else 0.0)
    return None


def _loss_of(core: Core, contested: int) -> float:
    """Return the loss within which at most the given number of jobs are contested."""
    seconds = core.seconds
    return float(seconds[contested]) if contested < len(seconds) else np.inf


def _assignment(problem: Problem, priced: Priced, found: SearchResult) -> AssignmentSolution:
    value = float(problem.values[problem.rows, found.picks].sum())
    used = float(problem.uses[found.picks].sum())
    bound = value if found.complete else priced.relaxed.bound
    return AssignmentSolution(
        choices=found.picks - 1,
        value=value + problem.thrift * used,
        bound=bound + problem.thrift * float(problem.capacity.sum()),
        prices=priced.prices,
        exact=found.complete,
    )


def _whole(problem: Problem, priced: Priced, values: Floats, gap: float) -> AssignmentSolution:
    """Solve by HiGHS, and use the better of both bounds."""
    thrifty = problem.values[:, 1:]
    uses, capacity = problem.uses[1:].astype(np.int64), problem.capacity.astype(np.int64)
    choices, highest = solve_whole(thrifty, uses, capacity, gap=gap)
    given = np.flatnonzero(choices >= 0)
    value = float(values[given, choices[given]].sum())
    spare = problem.thrift * float(problem.capacity.sum())
    bound = min(priced.relaxed.bound, highest) + spare
    if bound - value > max(gap * bound, spare) * (1 + _SMALLEST) + _SMALLEST:
        raise NoSolutionError(f"{len(values)} jobs: {value} of at most {bound}")
    return AssignmentSolution(
        choices=choices, value=value, bound=bound, prices=priced.prices, exact=False
    )
