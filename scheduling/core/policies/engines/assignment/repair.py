"""A quick answer: relaxations blended job by job, repaired to fit, then filled up."""

from dataclasses import dataclass

import numpy as np

from scheduling.core.policies.engines.assignment.problem import Floats, Ints
from scheduling.core.policies.engines.assignment.search import Core, Found

_MOST_MOVES = 10_000
#: Initial number of departures, and the factor of growth if they do not suffice.
_FEW = 2_000
_MORE = 8
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(slots=True)
class _Moves:
    """Departures from the picks so far: parallel arrays, those of one job side by side."""

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
        """Take the departure that loses least for the excess that it ends."""
        after = self.excess + self.change
        over = np.maximum(self.excess, 0)
        relief = (over - np.maximum(after, 0)) @ self.prices
        loss = -self.gains - relief  # use freed beyond the excess is lost for now
        ratio = np.where(relief > 0.0, (loss + relief) / np.maximum(relief, 1e-300), np.inf)
        index = int(ratio.argmin())
        if ratio[index] == np.inf:
            return False
        self.take(index)
        return True

    def fill(self) -> bool:
        """Take the departure that gains most and still fits."""
        fits = (self.excess + self.change <= 0).all(axis=1)
        gains = np.where(fits, self.gains, 0.0)
        index = int(gains.argmax()) if len(gains) else 0
        if not len(gains) or gains[index] <= 0.0:
            return False
        self.take(index)
        return True


def repair(core: Core) -> Found:
    """An answer close to the relaxation, not proved to be best."""
    count = _FEW
    moves = _Moves.of(core, count)
    while not _made_to_fit(moves):
        count *= _MORE
        moves = _Moves.of(core, count)
    for _ in range(_MOST_MOVES):
        if not moves.fill():
            break
    value = float(core.problem.values[core.problem.rows, moves.picks].sum())
    return Found(core.priced.relaxed.bound - value, moves.picks, complete=False)


def _made_to_fit(moves: _Moves) -> bool:
    """Whether the departures suffice; all of them do, since having nothing is among them."""
    while (moves.excess > 0).any():
        if not moves.relieve():
            return False
    return True


def _blended(core: Core) -> Ints:
    """Each job's column from one of the weighted relaxations, so that together they almost fit.

    Jobs that differ alike between the relaxations are adjacent and take turns.
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
    """The loss that covers the given number of departures, or all, besides the picks."""
    count += len(core.losses)
    if core.losses.size <= count:
        return float(np.finfo(np.float64).max)
    losses = core.losses[np.isfinite(core.losses)]
    if len(losses) <= count:
        return float(losses.max(initial=0.0))
    return float(np.partition(losses, count)[count])
