"""Hierarchical fairness by water filling (Gavel, OSDI '20, section 4.3).

Entities have weights; an entity's weight goes to its jobs that can still gain, either in
proportion to theirs ("fairness") or to the first of them alone ("fifo"). The level of all rises
together until some cannot rise further; those are fixed and their weight goes to the others, until
no job can rise.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from scheduling.core.policies.gavel.problem import (
    Floats,
    FractionProgram,
    Fractions,
    equal_shares,
)

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
        policies: by entity.
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
    """Each job's part of its entity's weight; 0 for those that cannot rise, or not yet."""
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
    """Raise all levels by their weights times one number, as far as possible."""
    program = FractionProgram(instance)
    rise = program.program.variables(1)
    rows: dict[int, int] = {}
    for job in map(int, np.flatnonzero(scaled > 0)):
        columns, factors = program.throughput(job)
        # Settled jobs may fall short by rounding alone.
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
