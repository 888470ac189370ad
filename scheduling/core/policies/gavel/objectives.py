"""Gavel's objectives; each is one linear program or several (OSDI '20, section 4)."""

from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final

import numpy as np

from scheduling.core.policies.engines.lp import InfeasibleError
from scheduling.core.policies.gavel.problem import (
    Floats,
    FractionProgram,
    Fractions,
    equal_shares,
    isolated_shares,
)

_ITERATIONS: Final = 50


def max_min_fairness(instance: Fractions, weights: Floats) -> Floats:
    """Find fractions that maximise the minimum normalised throughput (section 4.1).

    It is a job's throughput over its ``equal_shares``, per unit of its weight and times the
    devices that it holds.

    Args:
        instance: the jobs.
        weights: weights of the jobs, above 0, shape ``(J,)``.

    Returns:
        Fractions, shape ``(M, K)``. Jobs that cannot run on any type are excluded from the
        minimum.
    """
    scaled = _per_reference(instance, equal_shares(instance) * weights / instance.scale)
    return _raise_the_least(instance, scaled)


def least_makespan(instance: Fractions, steps_left: Floats) -> Floats:
    """Find fractions with the minimum makespan (section 4.2).

    The program maximises the minimum of ``throughput / steps_left``, whose inverse is the
    makespan.
    """
    return _raise_the_least(instance, _per_reference(instance, steps_left))


def finish_time_fairness(
    instance: Fractions, *, steps_left: Floats, age: Floats, isolated_seconds: Floats
) -> Floats:
    """Find fractions with the least maximum finish-time fairness (section 4.2; Themis, NSDI '20).

    A job's finish-time fairness is the time from its arrival to its end over the same time with a
    ``J``-th of the cluster to itself.

    Args:
        instance: the jobs.
        steps_left: remaining steps, shape ``(J,)``.
        age: seconds since arrival.
        isolated_seconds: seconds of the steps done so far in isolation.
    """
    whole = isolated_seconds + steps_left / np.maximum(isolated_shares(instance), 1e-12)
    able = _able(instance)
    best = least_makespan(instance, steps_left)
    worst = np.inf
    # Dinkelbach's iteration: throughputs in proportion to the last level's requirement lower it.
    for _ in range(_ITERATIONS):
        throughputs = instance.throughputs(best)[able]
        if not len(throughputs) or throughputs.min() <= 0:
            break
        level = float(((age[able] + steps_left[able] / throughputs) / whole[able]).max())
        if level >= worst * (1 - 1e-7):
            break
        worst = level
        needed = np.where(able, steps_left / np.maximum(level * whole - age, 1e-12), 0.0)
        best = _raise_the_least(instance, _per_reference(instance, needed))
    return best


def max_sum_throughput(
    instance: Fractions,
    *,
    prices: Floats | None = None,
    least: Floats | None = None,
    relative: bool = True,
) -> Floats:
    """Find fractions of maximum total throughput, or throughput per price (section 4.2).


    Args:
        instance: the jobs.
        prices: price of a device by type; None to maximise throughput alone.
        least: required steps/s of each job for its deadline; these rows are dropped together if
            they cannot all be met.
        relative: each job counts by the share of its best type's throughput; otherwise jobs with
            short steps get all devices.
    """
    best = instance.alone.max(axis=1, initial=0.0)
    if not relative:
        best = (best > 0).astype(np.float64)
    cost = np.ones(len(instance.capacity)) if prices is None else np.maximum(prices, 1e-12)

    def solve(floors: Floats | None) -> Floats:
        program = FractionProgram(instance)
        factors = np.zeros(program.x.shape)
        for row, sharing in enumerate(instance.sharings):
            for member, rates in zip(sharing.members, sharing.rates, strict=True):
                if best[member] > 0:
                    factors[row] += rates / best[member] / cost
        if floors is not None:
            for job in np.flatnonzero(floors > 0):
                program.keep_throughput(int(job), float(floors[job]))
        found = program.program.maximise(program.x.ravel(), factors.ravel())
        return program.matrix(found.x)

    if least is None:
        return solve(None)
    try:
        return solve(least)
    except InfeasibleError:
        return solve(None)


def in_order(instance: Fractions, order: Sequence[int]) -> Floats:
    """Allocate first in, first out: each job on its fastest type with room (section 4.2).

    A job that does not fit is skipped. Each admitted job runs all the time. With pairs, a job that
    does not fit alone joins the job with the best common throughput, if that exceeds the
    throughput of 1.5 devices. The first job without such a partner ends the search.
    """
    fractions = np.zeros((len(instance.sharings), len(instance.capacity)))
    free = instance.capacity.copy()
    alone = instance.alone
    taken: dict[int, int] = {}
    pairing = len(instance.sharings) > instance.jobs
    for job in order:
        fitting = np.flatnonzero((free >= instance.scale[job]) & (alone[job] > 0))
        if len(fitting):
            kind = int(fitting[np.argmax(alone[job][fitting])])
            free[kind] -= instance.scale[job]
            fractions[job, kind] = 1.0
            taken[job] = kind
        elif pairing and not _join(instance, fractions, taken, job):
            break
    return fractions


def _join(instance: Fractions, fractions: Floats, taken: dict[int, int], job: int) -> bool:
    """Add the best sharing of ``job`` with the jobs taken alone; False if none is good enough."""
    alone = instance.alone
    best = (1.5, -1, -1, -1)
    for row in range(instance.jobs, len(instance.sharings)):
        sharing = instance.sharings[row]
        if job not in sharing.members:
            continue
        other = sharing.members[1 - sharing.members.index(job)]
        kind = taken.get(other)
        if kind is None or fractions[other, kind] == 0 or alone[job, kind] == 0:
            continue
        worth = sum(
            float(rates[kind]) / float(alone[member, kind])
            for member, rates in zip(sharing.members, sharing.rates, strict=True)
        )
        if worth > best[0]:
            best = (worth, row, other, kind)
    _, row, other, kind = best
    if row < 0:
        return False
    fractions[other, kind] = 0.0
    fractions[row, kind] = 1.0
    taken[job] = kind
    return True


def _able(instance: Fractions) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the jobs that can run on some type."""
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.any(instance.alone > 0, axis=1)
    return found


def _per_reference(instance: Fractions, reference: Floats) -> Floats:
    """Return 1 over a positive reference; 0 for jobs without one or that cannot run."""
    return np.where(
        _able(instance) & (reference > 0), 1.0 / np.where(reference > 0, reference, 1.0), 0.0
    )


def _raise_the_least(instance: Fractions, scaled: Floats) -> Floats:
    """Maximise the least of ``throughput * scaled`` over jobs with ``scaled > 0``.

    A second program distributes the surplus, so that no device is idle.
    """
    program = FractionProgram(instance)
    if not np.any(scaled > 0):
        return np.zeros(program.x.shape)
    scaled = scaled / scaled.max()
    level = program.program.variables(1)
    terms = []
    for job in np.flatnonzero(scaled > 0):
        columns, factors = program.throughput(int(job))
        terms.append((columns, factors * scaled[job]))
        program.program.at_least(
            np.concatenate((columns, level)), np.concatenate((terms[-1][1], [-1.0])), 0.0
        )
    found = program.program.maximise(level, np.ones(1))
    program.program.at_least(level, np.ones(1), found.value * (1 - 1e-9))
    # With numbers of very different sizes, rounding may leave no room for a second solve.
    with suppress(InfeasibleError):
        found = program.program.maximise(
            np.concatenate([columns for columns, _ in terms]),
            np.concatenate([factors for _, factors in terms]),
        )
    return program.matrix(found.x)


_TIGHT = 1e-7


class EntityPolicy(StrEnum):
    """Distribution of an entity's weight among its jobs."""

    FAIRNESS = "fairness"
    FIFO = "fifo"


def water_fill(
    instance: Fractions,
    *,
    entity_of: Sequence[int],
    entity_weights: Floats,
    job_weights: Floats,
    policies: Sequence[EntityPolicy],
    rounds: int = 1000,
) -> Floats:
    """Return fractions that are max-min fair between entities and follow each one's policy within.

    A positive price of a job's row proves that the level cannot rise without it, in every optimum;
    so one program per step finds saturated jobs, where the paper solves a mixed-integer one.

    Args:
        instance: the jobs.
        entity_of: each job's entity.
        entity_weights: above 0, by entity.
        job_weights: above 0, by job.
        policies: policies by entity.
        rounds: maximum number of steps; each settles at least one job.

    Returns:
        Fractions, shape ``(M, K)``.
    """
    reference = equal_shares(instance) / instance.scale
    scaled = np.where(reference > 0, 1.0 / np.where(reference > 0, reference, 1.0), 0.0)
    level = np.zeros(instance.jobs)
    rising = scaled > 0
    fractions = np.zeros((len(instance.sharings), len(instance.capacity)))
    for _ in range(rounds):
        if not rising.any():
            break
        weights = _weights(entity_of, entity_weights, job_weights, policies, rising)
        fractions, rise, prices = _raise_together(instance, scaled, level, weights)
        stuck = (weights > 0) & (prices > _TIGHT * prices.max(initial=0.0))
        if rise <= 0 and not stuck.any():
            break
        level = level + weights * rise
        rising &= ~stuck
    return fractions


def _weights(
    entity_of: Sequence[int],
    entity_weights: Floats,
    job_weights: Floats,
    policies: Sequence[EntityPolicy],
    rising: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> Floats:
    """Distribute each entity's weight over its jobs; 0 for jobs that cannot rise, or not yet."""
    weights = np.zeros(len(job_weights))
    owners = np.asarray(entity_of)
    for entity, policy in enumerate(policies):
        members = np.flatnonzero((owners == entity) & rising)
        if not len(members):
            continue
        if policy is EntityPolicy.FIFO:
            members = members[:1]
        parts = job_weights[members] / job_weights[members].sum()
        weights[members] = entity_weights[entity] * parts
    return weights


def _raise_together(
    instance: Fractions, scaled: Floats, level: Floats, weights: Floats
) -> tuple[Floats, float, Floats]:
    """Raise all levels in proportion to their weights as far as possible."""
    program = FractionProgram(instance)
    rise = program.program.variables(1)
    rows: dict[int, int] = {}
    for job in map(int, np.flatnonzero(scaled > 0)):
        columns, factors = program.throughput(job)
        # Finished jobs may be below their level only by rounding errors.
        floor = float(level[job]) * (1 - 1e-9)
        rows[job] = program.program.at_least(
            np.concatenate((columns, rise)),
            np.concatenate((factors * scaled[job], [-weights[job]])),
            floor,
        )
    found = program.program.maximise(rise, np.ones(1))
    prices = np.zeros(instance.jobs)
    for job, row in rows.items():
        prices[job] = found.prices[row]
    return program.matrix(found.x), found.value, prices
