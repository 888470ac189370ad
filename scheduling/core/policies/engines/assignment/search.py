"""The exact part: all ways to depart from the relaxation that lose no more than is allowed.

At given prices the value of any answer is the relaxation's bound, less what each job loses by
departing from its best column, less the price of what is left over. So the best answer departs
only in jobs and columns whose loss is within the distance between bound and optimum: the core.
It is searched job by job, keeping for each use of the capacities the least loss.
"""

from dataclasses import dataclass

import numpy as np

from scheduling.core.policies.engines.assignment.prices import Priced
from scheduling.core.policies.engines.assignment.problem import Floats, Ints, Problem

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Core:
    """What the search starts from, whatever it may lose.

    Attributes:
        problem: the problem.
        priced: its prices and the relaxation there.
        losses: what each column loses against its job's best one, shape of the values.
        seconds: each job's least loss by departing, sorted.
    """

    problem: Problem
    priced: Priced
    losses: Floats
    seconds: Floats

    @classmethod
    def of(cls, problem: Problem, priced: Priced) -> "Core":
        """The losses at the prices that were found."""
        worth = problem.worth(priced.prices)
        picks = priced.relaxed.picks
        losses = worth[problem.rows, picks][:, None] - worth
        others = losses.copy()
        others[problem.rows, picks] = np.inf
        return cls(problem, priced, losses, np.sort(others.min(axis=1)))


@dataclass(frozen=True, slots=True)
class Found:
    """The best answer of one search.

    Attributes:
        loss: against the bound; infinite: there is none within what was allowed.
        picks: the column of each job.
        complete: nothing was cut off, so there is no better answer.
    """

    loss: float
    picks: Ints
    complete: bool


@dataclass(frozen=True, slots=True)
class _Stage:
    """A contested job: how each of its columns changes the use, and what it loses."""

    job: int
    columns: Ints
    change: Ints
    loss: Floats
    aim: Floats


def search(core: Core, allowed: float, beam: int) -> Found:
    """The answer that loses least, if it loses no more than ``allowed``.

    Args:
        core: the losses at the prices.
        allowed: the most that an answer may lose against the bound.
        beam: the most uses to keep at a time; beyond it those near the relaxation's blend stay.
    """
    problem, prices = core.problem, core.priced.prices
    stages, low, high = _stages(core, allowed)
    excess = (core.priced.relaxed.used - problem.capacity)[None, :]
    aim = excess[0].astype(np.float64)
    loss, keys, complete = np.zeros(1), np.zeros(1, dtype=np.int64), True
    factors = _factors(high[0] - low[0] + 1)
    back: list[Ints] = []
    for index, stage in enumerate(stages):
        aim = aim + stage.aim
        total = (loss[:, None] + stage.loss).ravel()
        tried = (excess[:, None, :] + stage.change).reshape(len(total), -1)
        idle = np.maximum(-(tried + high[index + 1]), 0) @ prices
        keep = (tried + low[index + 1] <= 0).all(axis=1) & (total + idle <= allowed)
        keep = np.flatnonzero(keep)
        if not len(keep):
            return Found(np.inf, core.priced.relaxed.picks, complete)
        total, tried = total[keep], tried[keep]
        if factors is not None:
            keys = (keys[:, None] + stage.change @ factors).ravel()[keep]
            least = _least(keys, total)
            keys = keys[least]
        else:
            least = _least(np.unique(tried, axis=0, return_inverse=True)[1].ravel(), total)
        keep, excess, loss = keep[least], tried[least], total[least]
        if len(keep) > beam:
            complete = False
            nearest = np.argsort(loss + np.abs(excess - aim) @ prices, kind="stable")[:beam]
            keep, excess, loss = keep[nearest], excess[nearest], loss[nearest]
            keys = keys[nearest] if factors is not None else keys
        back.append(keep)
    total = np.where((excess <= 0).all(axis=1), loss - excess @ prices, np.inf)
    best = int(total.argmin())
    if total[best] > allowed + _ROUNDING:
        return Found(np.inf, core.priced.relaxed.picks, complete)
    return Found(float(total[best]), _walked_back(core, stages, back, best), complete)


def _stages(core: Core, allowed: float) -> tuple[list[_Stage], Ints, Ints]:
    """The contested jobs, those with most at stake first.

    Also by how much the stages from each on can lower and raise the use of each capacity.
    """
    problem, picks = core.problem, core.priced.relaxed.picks
    inside = core.losses <= allowed
    contested = np.flatnonzero(inside.sum(axis=1) > 1)
    places, columns = inside[contested].nonzero()
    used = problem.uses[picks[contested]]
    aims = core.priced.blend(problem, contested) - used
    change = problem.uses[columns] - used[places]
    losses = core.losses[contested[places], columns]
    starts = np.searchsorted(places, np.arange(len(contested)))
    stakes = np.maximum.reduceat(np.abs(change) @ core.priced.prices, starts)
    order = np.argsort(-stakes, kind="stable")
    ends = [*starts.tolist()[1:], len(places)]
    spans = [slice(*span) for span in zip(starts.tolist(), ends, strict=False)]
    stages = [
        _Stage(job, columns[mine], change[mine], losses[mine], aim)
        for job, mine, aim in zip(contested.tolist(), spans, aims, strict=True)
    ]
    low = np.minimum.reduceat(change, starts, axis=0)[order]
    high = np.maximum.reduceat(change, starts, axis=0)[order]
    return [stages[place] for place in order.tolist()], _from_each(low), _from_each(high)


def _from_each(changes: Ints) -> Ints:
    """The sum of each row and all further ones, with nothing after the last."""
    sums = np.zeros((len(changes) + 1, changes.shape[1]), dtype=np.int64)
    sums[:-1] = changes[::-1].cumsum(axis=0)[::-1]
    return sums


def _factors(spans: Ints) -> Ints | None:
    """What turns a use of the capacities into one number; None: the numbers are too large."""
    if np.prod(spans.astype(np.float64)) >= 2.0**62:
        return None
    return np.append(np.cumprod(spans[:0:-1])[::-1], 1)


def _least(keys: Ints, losses: Floats) -> Ints:
    """For each distinct use the index of the least loss; of equals the first."""
    order = np.lexsort((losses, keys))
    ordered = keys[order]
    changes = np.ones(len(order), dtype=np.bool_)
    changes[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(order[changes])


def _walked_back(core: Core, stages: list[_Stage], back: list[Ints], state: int) -> Ints:
    """The columns that led to one of the uses at the end."""
    picks = core.priced.relaxed.picks.copy()
    for stage, kept in zip(reversed(stages), reversed(back), strict=True):
        state, option = divmod(int(kept[state]), len(stage.columns))
        picks[stage.job] = stage.columns[option]
    return picks
