"""Remaining work of each job: declared, known from its application's past, or guessed.

Guesses follow the usual pattern of running jobs: the longer a job has run, the longer it will run,
so that the expectation grows with its finished work.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policies.tessera.columns import Flags
from scheduling.core.policies.tessera.rates import Rates
from scheduling.core.policy_interface import PolicyJob

Floats = NDArray[np.float64]
#: Maximum number of stored totals of an application, the latest.
_KEPT: Final = 64
#: Minimum remaining work, as a part of the finished work.
_LEAST: Final = 0.02


@dataclass(frozen=True, slots=True)
class Left:
    """Remaining work by job.

    Attributes:
        steps: expected until it is complete.
        guessed: neither declared nor known from a past job.
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
    """Expected steps until each job is complete, in the units of its rates.

    Args:
        jobs: one each.
        rates: of the jobs.
        sizes: sorted totals of past jobs by application.
        growth: remaining steps of a job for each finished one.
        start: seconds at its least size, on its best type, that every job is taken to need.
        first: seconds at its best size that are before a job that has never run.
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
    """Remaining steps as declared, or as usual for the application."""
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
        state: of the round before.
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
