"""Solutions close to the relaxation: an exact search of the core, and a quick repair.

At given prices, the value of any solution is the relaxation's bound, less each job's loss by
departing from its best column, less the price of the unused capacity. So the best solution departs
only in jobs and columns whose loss is within the distance between bound and optimum: the core. The
search goes job by job and stores the smallest loss for each use of the capacities. The repair
blends relaxations job by job, makes them fit, and uses the remaining capacity.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scheduling.core.policies.engines.assignment.relaxation import Floats, Ints, Priced, Problem

_ROUNDING = 1e-12

_MOST_MOVES = 10_000
#: Initial number of departures, and the factor of growth if they do not suffice.
_FEW = 2_000
_MORE = 8
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Core:
    """Inputs of the search, independent of the allowed loss.

    Attributes:
        problem: the problem.
        priced: its prices and the relaxation there.
        losses: loss of each column against its job's best one, with the shape of the values.
        seconds: each job's least loss by departing, sorted.
    """

    problem: Problem
    priced: Priced
    losses: Floats
    seconds: Floats

    @classmethod
    def of(cls, problem: Problem, priced: Priced) -> "Core":
        """Compute the losses at the given prices."""
        worth = problem.worth(priced.prices)
        picks = priced.relaxed.picks
        losses = worth[problem.rows, picks][:, None] - worth
        others = losses.copy()
        others[problem.rows, picks] = np.inf
        return cls(problem, priced, losses, np.sort(others.min(axis=1)))


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best solution of one search.

    Attributes:
        loss: loss against the bound; infinite if no solution has an allowed loss.
        picks: the column of each job.
        complete: no branch was pruned, so no better solution exists.
    """

    loss: float
    picks: Ints
    complete: bool


class _Stage(NamedTuple):
    """A contested job: the change of use and the loss of each of its columns."""

    job: int
    columns: Ints
    change: Floats
    loss: Floats
    key: Ints | None


class _Stages(NamedTuple):
    """The contested jobs, and the possible change of each use by each job and all later ones.

    Attributes:
        each: the jobs, those with most at stake first; a change's key is one number for all uses,
            None where that would be too large.
        low: maximum reduction of each use by these jobs together; zero after the last.
        high: maximum increase of each use.
    """

    each: list[_Stage]
    low: Floats
    high: Floats


def search(core: Core, allowed: float, beam: int) -> SearchResult:
    """Return the solution with the smallest loss, if the loss is at most ``allowed``.

    Args:
        core: the losses at the prices.
        allowed: maximum loss of a solution against the bound.
        beam: maximum number of uses at a time; those near the relaxation's mean are retained.
    """
    problem, prices = core.problem, core.priced.prices
    stages = _stages(core, allowed)
    most, least_high = -stages.low[1:], -stages.high[1:]
    excess = (core.priced.relaxed.used - problem.capacity)[None, :]
    loss, keys, complete = np.zeros(1), np.zeros(1, dtype=np.int64), True
    aims: Floats | None = None
    back: list[Ints] = []
    for index, stage in enumerate(stages.each):
        total = (loss[:, None] + stage.loss).ravel()
        tried = (excess[:, None, :] + stage.change).reshape(len(total), -1)
        idle = np.maximum(least_high[index] - tried, 0.0) @ prices
        fits = np.logical_and.reduce(tried <= most[index], axis=1)
        keep = (fits & (total + idle <= allowed)).nonzero()[0]
        if not len(keep):
            return SearchResult(np.inf, core.priced.relaxed.picks, complete)
        if stage.key is not None:
            keys = (keys[:, None] + stage.key).ravel().take(keep)
            least = _least(keys, total.take(keep))
            keys = keys.take(least)
        else:
            same = np.unique(tried[keep], axis=0, return_inverse=True)[1].ravel()
            least = _least(same, total[keep])
        keep = keep.take(least)
        excess, loss = tried.take(keep, axis=0), total.take(keep)
        if len(keep) > beam:
            complete = False
            aims = _aims(core, stages.each) if aims is None else aims
            away = np.abs(excess - aims[index]) @ prices
            nearest = np.argsort(loss + away, kind="stable")[:beam]
            keep, excess, loss = keep[nearest], excess[nearest], loss[nearest]
            keys = keys[nearest] if stage.key is not None else keys
        back.append(keep)
    total = np.where((excess <= 0).all(axis=1), loss - excess @ prices, np.inf)
    best = int(total.argmin())
    if total[best] > allowed + _ROUNDING:
        return SearchResult(np.inf, core.priced.relaxed.picks, complete)
    return SearchResult(float(total[best]), _walked_back(core, stages.each, back, best), complete)


def _stages(core: Core, allowed: float) -> _Stages:
    """Return the jobs with several columns within the allowed loss."""
    problem, picks = core.problem, core.priced.relaxed.picks
    inside = core.losses <= allowed
    contested = np.flatnonzero(inside.sum(axis=1) > 1)
    places, columns = inside[contested].nonzero()
    rows = contested.take(places)
    change = problem.uses.take(columns, axis=0) - problem.uses.take(picks.take(rows), axis=0)
    losses = core.losses[rows, columns]
    starts = np.searchsorted(places, np.arange(len(contested)))
    stakes = np.maximum.reduceat(np.abs(change) @ core.priced.prices, starts)
    order = np.argsort(-stakes, kind="stable")
    ends = [*starts.tolist()[1:], len(places)]
    spans = [slice(*span) for span in zip(starts.tolist(), ends, strict=False)]
    low = _from_each(np.minimum.reduceat(change, starts, axis=0)[order])
    high = _from_each(np.maximum.reduceat(change, starts, axis=0)[order])
    factors = _factors(high[0] - low[0] + 1)
    keys = None if factors is None else change.astype(np.int64) @ factors
    stages = [
        _Stage(
            job, columns[mine], change[mine], losses[mine], None if keys is None else keys[mine]
        )
        for job, mine in zip(contested.tolist(), spans, strict=True)
    ]
    return _Stages([stages[place] for place in order.tolist()], low, high)


def _aims(core: Core, stages: list[_Stage]) -> Floats:
    """Compute the excess after each stage if its jobs used the blend of the relaxation."""
    jobs = np.array([stage.job for stage in stages])
    problem, relaxed = core.problem, core.priced.relaxed
    changes = core.priced.blend(problem, jobs) - problem.uses[relaxed.picks[jobs]]
    return np.cumsum([relaxed.used - problem.capacity, *changes], axis=0)[1:]


def _from_each(changes: Floats) -> Floats:
    """Return the sum of each row and all further rows, followed by zero."""
    sums = np.zeros((len(changes) + 1, changes.shape[1]))
    sums[:-1] = changes[::-1].cumsum(axis=0)[::-1]
    return sums


def _factors(spans: Floats) -> Ints | None:
    """Return factors that map uses to one number; None if the numbers are too large."""
    factors = [1]
    for span in spans[::-1].tolist():
        factors.append(factors[-1] * int(span))
    return np.array(factors[-2::-1]) if factors[-1] < 1 << 62 else None


def _least(keys: Ints, losses: Floats) -> Ints:
    """Return the index of the least loss for each distinct use; the first in a tie."""
    order = np.lexsort((losses, keys))
    ordered = keys[order]
    changes = np.ones(len(order), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
    return order[changes]


def _walked_back(core: Core, stages: list[_Stage], back: list[Ints], state: int) -> Ints:
    """Trace the columns back that led to one of the final uses."""
    picks = core.priced.relaxed.picks.copy()
    for stage, kept in zip(reversed(stages), reversed(back), strict=True):
        state, option = divmod(int(kept[state]), len(stage.columns))
        picks[stage.job] = stage.columns[option]
    return picks


@dataclass(slots=True)
class _Moves:
    """Departures from the current picks, as parallel arrays grouped by job."""

    core: Core
    picks: Ints
    excess: Floats
    jobs: Ints
    columns: Ints
    starts: Ints
    change: Floats
    gains: Floats
    prices: Floats

    @classmethod
    def of(cls, core: Core, count: int) -> "_Moves":
        problem, prices = core.problem, core.priced.prices
        jobs, columns = np.nonzero(core.losses <= _level(core, count))
        picks = _blended(core)
        return cls(
            core=core,
            picks=picks,
            excess=problem.uses.take(picks, axis=0).sum(axis=0) - problem.capacity,
            jobs=jobs,
            columns=columns,
            starts=np.searchsorted(jobs, np.arange(len(problem.values) + 1)),
            change=problem.uses.take(columns, axis=0) - problem.uses.take(picks[jobs], axis=0),
            gains=problem.values[jobs, columns] - problem.values[jobs, picks[jobs]],
            # If no capacity has a price, freed room still has a value.
            prices=np.maximum(prices, max(1e-3 * prices.max(), 1e-12)),
        )

    def take(self, index: int) -> None:
        """Change one job's column."""
        job, column = self.jobs[index], self.columns[index]
        change, gain = self.change[index].copy(), self.gains[index]
        self.picks[job] = column
        self.excess = self.excess + change
        mine = slice(self.starts[job], self.starts[job + 1])
        self.change[mine] -= change
        self.gains[mine] -= gain

    def relieve(self) -> bool:
        """Take the departure with the smallest loss per removed excess."""
        after = self.excess + self.change
        over = np.maximum(self.excess, 0)
        relief = (over - np.maximum(after, 0)) @ self.prices
        loss = -self.gains - relief  # freed capacity beyond the excess has no value yet
        ratio = np.where(relief > 0.0, (loss + relief) / np.maximum(relief, 1e-300), np.inf)
        index = int(ratio.argmin())
        if ratio[index] == np.inf:
            return False
        self.take(index)
        return True

    def fill(self) -> bool:
        """Take the fitting departure with the largest gain."""
        fits = (self.excess + self.change <= 0).all(axis=1)
        gains = np.where(fits, self.gains, 0.0)
        index = int(gains.argmax()) if len(gains) else 0
        if not len(gains) or gains[index] <= 0.0:
            return False
        self.take(index)
        return True


def repair(core: Core) -> SearchResult:
    """Find a feasible solution close to the relaxation, without a proof of optimality."""
    count = _FEW
    moves = _Moves.of(core, count)
    while not _made_to_fit(moves):
        count *= _MORE
        moves = _Moves.of(core, count)
    for _ in range(_MOST_MOVES):
        if not moves.fill():
            break
    value = float(core.problem.values[core.problem.rows, moves.picks].sum())
    return SearchResult(core.priced.relaxed.bound - value, moves.picks, complete=False)


def _made_to_fit(moves: _Moves) -> bool:
    """Return whether the departures suffice; all do, since they include no allocation."""
    while (moves.excess > 0).any():
        if not moves.relieve():
            return False
    return True


def _blended(core: Core) -> Ints:
    """Choose each job's column from one of the weighted relaxations, so that they almost fit.

    Jobs with equal differences between the relaxations are adjacent and alternate.
    """
    priced = core.priced
    table = np.array(priced.picks)
    order = np.lexsort(table)
    turns = (np.arange(len(order)) + 0.5) * _GOLDEN % 1.0
    which = np.searchsorted(np.cumsum(priced.weights)[:-1], turns, side="right")
    picks = np.empty_like(priced.relaxed.picks)
    picks[order] = table[which, order]
    return picks


def _level(core: Core, count: int) -> float:
    """Return the loss that covers the given number of departures, or all, besides the picks."""
    count += len(core.losses)
    if core.losses.size <= count:
        return float(np.finfo(np.float64).max)
    losses = core.losses[np.isfinite(core.losses)]
    if len(losses) <= count:
        return float(losses.max(initial=0.0))
    return float(np.partition(losses, count)[count])
