"""The fractions of time that Gavel optimises: jobs, or pairs of them, on types of devices.

Gavel (OSDI '20, sections 3 and 4). ``X[m, k]`` is the fraction of time for which combination
``m`` holds devices of type ``k``; a job's effective throughput is the sum over the combinations
that it is part of.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduling.core.policies.engines.lp import LinearProgram

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Jobs that share devices, or one job with exclusive devices.

    Attributes:
        members: indices of jobs, one or two.
        rates: steps/s of each member on each type, shape ``(len(members), K)``; 0 where it
            cannot run.
    """

    members: tuple[int, ...]
    rates: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Fractions:
    """An instance: jobs, their throughputs on each type, and the capacities.

    Attributes:
        scale: devices of each job while it runs, shape ``(J,)``.
        capacity: devices of each type, shape ``(K,)``.
        sharings: the first ``J`` are the jobs alone, in order; pairs follow.
    """

    scale: Floats
    capacity: Floats
    sharings: tuple[Sharing, ...]

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.scale)

    @property
    def alone(self) -> Floats:
        """Steps/s of each job alone on each type, shape ``(J, K)``."""
        kinds = len(self.capacity)
        rows = [sharing.rates[0] for sharing in self.sharings[: self.jobs]]
        return np.asarray(rows, dtype=np.float64).reshape(self.jobs, kinds)

    def throughputs(self, fractions: Floats) -> Floats:
        """Return steps/s of each job under ``fractions``, shape ``(J,)``."""
        found = np.zeros(self.jobs)
        for sharing, row in zip(self.sharings, fractions, strict=True):
            for member, rates in zip(sharing.members, sharing.rates, strict=True):
                found[member] += float(rates @ row)
        return found


def jobs_alone(rates: Floats, scale: Floats, capacity: Floats) -> Fractions:
    """Build a problem without space sharing.

    Args:
        rates: steps/s, shape ``(J, K)``; a job larger than a type's capacity cannot run on it.
        scale: devices of each job, shape ``(J,)``.
        capacity: devices of each type, shape ``(K,)``.
    """
    possible = np.where(capacity[None, :] >= scale[:, None], rates, 0.0)
    alone = tuple(
        Sharing(members=(job,), rates=row.reshape(1, -1)) for job, row in enumerate(possible)
    )
    return Fractions(
        scale=np.asarray(scale, dtype=np.float64),
        capacity=np.asarray(capacity, dtype=np.float64),
        sharings=alone,
    )


def with_pairs(instance: Fractions, pairs: Sequence[Sharing]) -> Fractions:
    """Add combinations of two jobs of equal size that may share their devices to ``instance``.

    Raises:
        ValueError: two jobs of a pair differ in size.
    """
    for pair in pairs:
        first, second = pair.members
        if instance.scale[first] != instance.scale[second]:
            raise ValueError(f"jobs {first} and {second} hold different numbers of devices")
    return Fractions(
        scale=instance.scale,
        capacity=instance.capacity,
        sharings=(*instance.sharings, *pairs),
    )


def equal_shares(instance: Fractions) -> Floats:
    """Return steps/s of each job if all had equal mixes of types, with the cluster time-shared.

    This is the reference of max-min fairness: the devices of each type over the number of jobs,
    scaled so that no job exceeds a fraction of 1.
    """
    mix = instance.capacity / max(1, instance.jobs)
    return instance.alone @ (mix / max(float(mix.sum()), 1e-12))


def isolated_shares(instance: Fractions) -> Floats:
    """Return steps/s of each job with a ``J``-th of the cluster: the reference of Themis."""
    shares = instance.capacity[None, :] / (max(1, instance.jobs) * instance.scale[:, None])
    shares = shares / np.maximum(1.0, shares.sum(axis=1, keepdims=True))
    found: Floats = (instance.alone * shares).sum(axis=1)
    return found


class FractionProgram:
    """The rows of every objective: one variable for each combination and type."""

    def __init__(self, instance: Fractions) -> None:
        self.instance = instance
        self.program = LinearProgram()
        kinds = len(instance.capacity)
        self.x = self.program.variables(len(instance.sharings) * kinds, upper=1.0).reshape(
            len(instance.sharings), kinds
        )
        self._terms: list[tuple[list[Ints], list[Floats]]] = [
            ([], []) for _ in range(instance.jobs)
        ]
        uses: list[list[Ints]] = [[] for _ in range(instance.jobs)]
        for row, sharing in zip(self.x, instance.sharings, strict=True):
            for member, rates in zip(sharing.members, sharing.rates, strict=True):
                self._terms[member][0].append(row)
                self._terms[member][1].append(rates)
                uses[member].append(row)
        held = np.array([instance.scale[sharing.members[0]] for sharing in instance.sharings])
        for kind, capacity in enumerate(instance.capacity):
            self.program.at_most(self.x[:, kind], held, float(capacity))
        for rows in uses:
            columns = np.concatenate(rows)
            self.program.at_most(columns, np.ones(len(columns)), 1.0)

    def throughput(self, job: int) -> tuple[Ints, Floats]:
        """Return a job's effective throughput as columns and factors."""
        columns, factors = self._terms[job]
        return np.concatenate(columns), np.concatenate(factors)

    def keep_throughput(self, job: int, least: float) -> int:
        """Add a row: the job runs at ``least`` steps/s or more."""
        columns, factors = self.throughput(job)
        return self.program.at_least(columns, factors, least)

    def matrix(self, solution: Floats) -> Floats:
        """Return the fractions of a solution, shape ``(M, K)``, without rounding errors."""
        found: Floats = np.clip(solution[self.x], 0.0, 1.0)
        found[found < 1e-9] = 0.0
        return found
