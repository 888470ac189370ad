"""Value of each size to each job: its speed over a horizon, net of the restart.

By time, the objective of a round is the sum over jobs of ``weight * (speed / steps left) **
power``; ``prices`` contains the other objective. The fraction is one over the completion time at
the average speed over the horizon, so that short jobs count more, and with a power below 1 no job
starves. Remaining work is declared, known from the application's past, or guessed: the longer a
job has run, the longer it will run, so that the expectation grows with its finished work.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.jobspec import JobClass
from scheduling.core.policies.tessera.columns import Flags, Rates, SizeColumns
from scheduling.core.policy_interface import PolicyJob, Snapshot

Floats = NDArray[np.float64]
#: Maximum number of stored totals of an application, the latest.
_KEPT: Final = 64
#: Minimum remaining work, as a part of the finished work.
_LEAST: Final = 0.02
#: Minimum fraction of the speed of a size for any horizon.
_NEVER_NOTHING: Final = 0.01
_OPPORTUNISTIC: Final = 1e-3
#: Assumed seconds of an unknown job at its smallest size.
_TYPICAL: Final = 3600.0
#: Difference of priorities that doubles the weight of a job.
_PRIORITY_DOUBLES: Final = 100.0


@dataclass(frozen=True, slots=True)
class Left:
    """Remaining work by job.

    Attributes:
        steps: expected steps until completion.
        guessed: whether it is neither declared nor known from a past job.
    """

    steps: Floats
    guessed: Flags


def steps_left(
    jobs: Sequence[PolicyJob],
    rates: Rates,
    *,
    sizes: Mapping[str, Sequence[float]],
    growth: float,
    start: float,
    first: float,
) -> Left:
    """Estimate the steps until each job is complete, in the units of its rates.

    Args:
        jobs: the jobs.
        rates: rates of the jobs.
        sizes: sorted totals of past jobs by application.
        growth: remaining steps of a job for each finished one.
        start: minimum assumed run time of a job at its smallest size on its best type, in seconds.
        first: assumed remaining seconds at its best size of a job that has never run.
    """
    left, guessed = np.zeros(len(jobs)), np.zeros(len(jobs), dtype=np.bool_)
    best = rates.table.max(axis=1, initial=0.0)
    for row, job in enumerate(jobs):
        if not rates.known[row]:
            left[row], guessed[row] = first * best[row], True
            continue
        done = job.facts.steps_done
        told = _told(job, rates.asked[row], sizes)
        if told is None:
            told, guessed[row] = growth * done + start * rates.least[row], True
        left[row] = max(told, _LEAST * done, best[row])
    return Left(left, guessed)


def _told(job: PolicyJob, asked: float, sizes: Mapping[str, Sequence[float]]) -> float | None:
    """Return the declared remaining steps, otherwise the usual ones for the application."""
    done = job.facts.steps_done
    if job.facts.steps_left is not None:
        return job.facts.steps_left
    if job.terms.estimate is not None and done < job.terms.estimate * asked:
        return job.terms.estimate * asked - done
    past = sizes.get(job.terms.application or "", ())
    longer = past[bisect_right(past, done) :]
    return sum(longer) / len(longer) - done if longer else None


def remembered(jobs: Sequence[PolicyJob], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy's state after this round: present jobs, and the sizes of past jobs.

    A job that has left counts as complete with its last steps.

    Args:
        jobs: present jobs.
        state: state of the previous round.
    """
    there = {
        str(job.id): [job.terms.application, job.facts.steps_done]
        for job in sorted(jobs, key=lambda job: job.id)
        if job.terms.application is not None
    }
    sizes = {name: list(past) for name, past in state.get("sizes", {}).items()}
    for job_id, (name, done) in sorted(state.get("there", {}).items()):
        if job_id not in there and done > 0.0:
            sizes[name] = [*sizes.get(name, []), done][-_KEPT:]
    return {"there": there, "sizes": sizes}


@dataclass(frozen=True, slots=True)
class JobStanding:
    """Inputs of the objective by job.

    Attributes:
        left: expected steps until it is complete.
        fair: steps per second on an equal part of every type.
    """

    left: Floats
    fair: Floats


def restart_costs(
    snapshot: Snapshot, jobs: Sequence[PolicyJob], columns: SizeColumns, factor: float
) -> Floats:
    """Return the seconds without progress at the start of each size, shape ``(jobs, columns)``.

    Every start and change costs a restart; continuing costs the rest of a restart under way.

    Args:
        snapshot: snapshot with the model and the time.
        jobs: one row each.
        columns: one column each.
        factor: factor on restarts of running jobs, since a job that is moved for another job will
            often be moved back.
    """
    model = snapshot.model
    starts = np.array([model.restart_seconds(job) for job in jobs]).reshape(-1, 1)
    running = np.array([job.alloc is not None for job in jobs], dtype=np.bool_).reshape(-1, 1)
    costs = np.repeat(np.where(running, starts * factor, starts), len(columns.shapes), axis=1)
    for row, job in enumerate(jobs):
        held = held_column(job, columns)
        if held is not None:
            under_way = starts[row, 0] - (snapshot.now - job.since)
            costs[row, held] = max(0.0, under_way) if job.facts.recovering else 0.0
    return costs


def held_column(job: PolicyJob, columns: SizeColumns) -> int | None:
    """Return the column of a job's present devices; None without devices or for mixed types."""
    if job.alloc is None or len(job.alloc.parts) != 1:
        return None
    return columns.find(job.alloc.single.type, job.alloc.devices)


def horizons(jobs: Sequence[PolicyJob], usual: float, trust: float) -> Floats:
    """Return the expected seconds for which each job retains its size.

    The mean time between its restarts so far, with ``trust`` spans of the usual length added to
    them: a job that was moved often will be moved again soon, so that a move pays less.
    """
    executed = np.array([job.facts.executed for job in jobs])
    restarts = np.array([job.facts.restarts for job in jobs])
    found: Floats = (usual * trust + executed) / (trust + restarts)
    return found


def net_speeds(rates: Floats, left: Floats, costs: Floats, horizon: Floats) -> Floats:
    """Average the steps per second over the horizon, or until completion if sooner.

    Args:
        rates: steps per second, shape ``(jobs, columns)``.
        left: steps until completion, by job.
        costs: initial seconds without progress, with the shape of the rates.
        horizon: seconds, by job.
    """
    horizon = horizon[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        until_end = left[:, None] / rates + costs
        ends = np.where(until_end > 0.0, left[:, None] / until_end, rates)
    goes_on = rates * np.maximum(0.0, horizon - costs) / horizon
    net = np.where(until_end <= horizon, ends, goes_on)
    speeds: Floats = np.where(rates > 0.0, np.maximum(net, rates * _NEVER_NOTHING), 0.0)
    return speeds


def fair_speeds(
    rates: Floats, columns: SizeColumns, capacity: Sequence[int], count: int
) -> Floats:
    """Compute each job's speed on one ``count``-th of every type, as in finish-time fairness.

    The time of a full run is the mean over types, weighted by their devices, of the time on the
    job's part of each; between two sizes speeds are interpolated.

    Args:
        rates: steps per second, shape ``(jobs, columns)``.
        columns: sizes of the columns.
        capacity: capacity of each type.
        count: number of jobs that share the capacity.
    """
    slowness, weight = np.zeros(len(rates)), np.zeros(len(rates))
    for kind, total in enumerate(capacity):
        at = np.flatnonzero(columns.kinds == kind)
        if not total or not len(at):
            continue
        sizes = np.concatenate([[0.0], columns.sizes[at]])
        for row, line in enumerate(rates[:, at]):
            known = np.concatenate([[True], line > 0.0])
            if known.sum() > 1:
                speeds = np.concatenate([[0.0], line])[known]
                speed = float(np.interp(total / count, sizes[known], speeds))
                slowness[row] += total / speed
                weight[row] += total
    fair: Floats = np.divide(weight, slowness, out=np.zeros(len(rates)), where=slowness > 0.0)
    return fair


def unfairness(snapshot: Snapshot, jobs: Sequence[PolicyJob], standing: JobStanding) -> Floats:
    """Estimate the finish-time fairness of each job at its fair speed from now on.

    The value is age plus remaining time, divided by the time of a complete run at the fair speed.
    Neither depends on the present devices, so that a plan does not affect its own reasons.
    """
    age = np.array([snapshot.now - job.submitted for job in jobs])
    restart = np.array([snapshot.model.restart_seconds(job) for job in jobs])
    done = np.array([job.facts.steps_done for job in jobs])
    fair = np.where(standing.fair > 0.0, standing.fair, np.inf)
    whole = (done + standing.left) / fair + restart
    headed = age + standing.left / fair
    found: Floats = np.divide(headed, whole, out=np.zeros(len(jobs)), where=whole > 0.0)
    return found


def weights(jobs: Sequence[PolicyJob], unfair: Floats, *, bound: float, rise: float) -> Floats:
    """Weight of each job: from its owner's weight, its priority, and its unfairness.

    Args:
        jobs: jobs in the order of the result.
        unfair: expected finish-time fairness of each job.
        bound: finish-time fairness above which a job gets more weight.
        rise: exponent of the ratio to ``bound``.
    """
    given = np.array(
        [
            job.terms.weight * 2.0 ** (max(job.priority, 0) / _PRIORITY_DOUBLES)
            if job.job_class is not JobClass.OPPORTUNISTIC
            else job.terms.weight * _OPPORTUNISTIC
            for job in jobs
        ]
    )
    found: Floats = given * np.maximum(1.0, unfair / bound) ** rise
    return found


def believed(work: Floats, guessed: Flags, belief: float) -> Floats:
    """Remaining work for the order of jobs; guesses are shifted towards one hour.

    Args:
        work: seconds at the smallest size, by job.
        guessed: jobs of unknown work.
        belief: exponent of a guess's distance from one hour.
    """
    drawn: Floats = _TYPICAL * (work / _TYPICAL) ** belief
    return np.where(guessed, drawn, work)


def worths(rates: Rates, speeds: Floats, work: Floats, *, power: float, order: float) -> Floats:
    """Compute the value of each size in the objective, shape ``(jobs, columns)``, before weights.

    Args:
        rates: rates of the jobs; the unit is the speed at the minimum size.
        speeds: speeds net of restarts.
        work: remaining seconds at the smallest size, by job.
        power: exponent of the speed.
        order: exponent by which jobs with less remaining work count more.
    """
    unit = np.where(rates.least > 0.0, rates.least, 1.0)[:, None]
    found: Floats = (speeds / unit) ** power / np.where(work > 0.0, work, np.inf)[:, None] ** order
    return np.where(rates.table > 0.0, found, 0.0)
