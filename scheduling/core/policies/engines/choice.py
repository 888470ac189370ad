"""One choice per job under capacities: the integer program behind Sia.

Minimise the sum of the costs of the chosen columns, where leaving a job out costs nothing and
only columns with a negative cost are worth choosing. Columns that cannot be part of any optimum
are left out first. What is left is solved exactly by dynamic programming over what is used of
each capacity where that table is small, and by HiGHS where it is not.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import scipy  # its parts are loaded when a program is solved, not when the portal starts
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_TIME_LIMIT: Final = 30.0
_MOST_STATES: Final = 100_000
_MOST_WORK: Final = 20_000_000


class NoSolutionError(RuntimeError):
    """The solver found no answer within its limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Columns to choose from, as parallel arrays.

    Attributes:
        costs: of each column; only negative ones are ever chosen.
        jobs: the job of each column, counted from 0.
        kinds: the capacity that a column draws on, counted from 0.
        sizes: how much of it.
        capacity: by kind.
    """

    costs: Floats
    jobs: Ints
    kinds: Ints
    sizes: Ints
    capacity: Ints

    def worthwhile(self) -> Ints:
        """Indices of columns that some optimum may need, those of one job side by side.

        A column is not needed if it is no gain, does not fit alone, or if another one of the same
        job and kind costs no more and takes no more.
        """
        keep = np.flatnonzero((self.costs < 0) & (self.sizes <= self.capacity[self.kinds]))
        order = keep[
            np.lexsort((self.costs[keep], self.sizes[keep], self.kinds[keep], self.jobs[keep]))
        ]
        if not len(order):
            return order
        group = self.jobs[order] * (len(self.capacity) + 1) + self.kinds[order]
        best = _running_minimum(self.costs[order], group)
        kept = np.sort(order[best])
        return kept[np.argsort(self.jobs[kept], kind="stable")]


def choose(choices: Choices, *, gap: float = 1e-4) -> list[int]:
    """The chosen columns, at most one per job, together within the capacities.

    Args:
        choices: what there is.
        gap: the relative distance from the optimum at which the search may stop.

    Raises:
        NoSolutionError: the solver gave up.
    """
    columns = choices.worthwhile()
    if not len(columns):
        return []
    easy = _all_best(choices, columns)
    if easy is not None:
        return easy
    room = _reachable(choices, columns)
    states = int(np.prod(room + 1))
    if states <= _MOST_STATES and states * len(columns) <= _MOST_WORK:
        return _by_table(choices, columns, room)
    return _by_solver(choices, columns, gap)


def _reachable(choices: Choices, columns: Ints) -> Ints:
    """Capacities, less what could not be used even if every job took its largest column."""
    largest = np.zeros(
        (int(choices.jobs[columns].max()) + 1, len(choices.capacity)), dtype=np.int64
    )
    np.maximum.at(largest, (choices.jobs[columns], choices.kinds[columns]), choices.sizes[columns])
    return np.asarray(np.minimum(choices.capacity, largest.sum(axis=0)))


def _by_table(choices: Choices, columns: Ints, room: Ints) -> list[int]:
    """The optimum, from the least cost for every amount that may be used of each capacity."""
    jobs, kinds = choices.jobs[columns].tolist(), choices.kinds[columns].tolist()
    sizes, costs = choices.sizes[columns].tolist(), choices.costs[columns].tolist()
    tables = [np.zeros(room + 1)]
    groups = [list(group) for _job, group in groupby(range(len(columns)), key=jobs.__getitem__)]
    for group in groups:
        before = tables[-1]
        after = before.copy()
        for index in group:
            to = (slice(None),) * kinds[index] + (slice(sizes[index], None),)
            start = (slice(None),) * kinds[index] + (slice(0, -sizes[index]),)
            np.minimum(after[to], before[start] + costs[index], out=after[to])
        tables.append(after)
    used, chosen = list(room.tolist()), []
    for group, before, after in zip(reversed(groups), tables[-2::-1], tables[:0:-1], strict=True):
        best = after[tuple(used)]
        for index in group:
            left = used[kinds[index]] - sizes[index]
            rest = (*used[: kinds[index]], left, *used[kinds[index] + 1 :])
            if left >= 0 and before[rest] + costs[index] == best:
                chosen.append(int(columns[index]))
                used[kinds[index]] = left
                break
    return sorted(chosen)


def _by_solver(choices: Choices, columns: Ints, gap: float) -> list[int]:
    """The optimum to within a relative gap, from HiGHS."""
    jobs, row_of = np.unique(choices.jobs[columns], return_inverse=True)
    count, rows = len(columns), len(jobs)
    matrix = scipy.sparse.csc_array(
        (
            np.concatenate([np.ones(count), choices.sizes[columns].astype(np.float64)]),
            (
                np.concatenate([row_of, rows + choices.kinds[columns]]),
                np.concatenate([np.arange(count), np.arange(count)]),
            ),
        ),
        shape=(rows + len(choices.capacity), count),
    )
    upper = np.concatenate([np.ones(rows), choices.capacity.astype(np.float64)])
    found: Any = scipy.optimize.milp(
        choices.costs[columns],
        integrality=np.ones(count),
        bounds=scipy.optimize.Bounds(0, 1),
        constraints=scipy.optimize.LinearConstraint(matrix, -np.inf, upper),
        options={"mip_rel_gap": gap, "time_limit": _TIME_LIMIT},
    )
    if found.x is None:
        raise NoSolutionError(f"no choice for {rows} jobs: {found.message}")
    return [int(column) for column in columns[found.x > 0.5]]


def _all_best(choices: Choices, columns: Ints) -> list[int] | None:
    """Every job's best column, where all of them fit together."""
    order = columns[
        np.lexsort((choices.sizes[columns], choices.costs[columns], choices.jobs[columns]))
    ]
    jobs = choices.jobs[order]
    first = order[np.concatenate([[True], jobs[1:] != jobs[:-1]])]
    used = np.bincount(
        choices.kinds[first], weights=choices.sizes[first], minlength=len(choices.capacity)
    )
    if (used > choices.capacity).any():
        return None
    return sorted(int(column) for column in first)


def _running_minimum(costs: Floats, group: Ints) -> NDArray[np.bool_]:
    """Which entries cost less than all before them in their group; groups are adjacent."""
    best = np.zeros(len(costs), dtype=np.bool_)
    lowest, current = np.inf, -1
    for index, (cost, name) in enumerate(zip(costs.tolist(), group.tolist(), strict=True)):
        if name != current:
            lowest, current = np.inf, name
        if cost < lowest:
            best[index], lowest = True, cost
    return best
