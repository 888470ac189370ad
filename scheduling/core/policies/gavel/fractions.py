"""Conversion between views and Gavel's programs: rates in, fractions by job and type out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from scheduling.core.policies.engines.filling import account_of
from scheduling.core.policies.engines.pairs import Pair
from scheduling.core.policies.engines.room import one_type, shape_of
from scheduling.core.policies.gavel import objectives
from scheduling.core.policies.gavel.objectives import EntityPolicy, water_fill
from scheduling.core.policies.gavel.problem import (
    Floats,
    Fractions,
    Sharing,
    isolated_shares,
    jobs_alone,
    with_pairs,
)
from scheduling.core.policies.gavel.rounds import Combination
from scheduling.core.policy_interface import PolicyJob, Snapshot

_MOST_PAIRS = 2000
_SYMMETRIC = ("throughput", "cost")
_UNKNOWN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelView:
    """Jobs and types as inputs of Gavel's programs.

    Attributes:
        kinds: the types, in the order of the columns.
        instance: input of the programs.
    """

    snapshot: Snapshot
    jobs: tuple[PolicyJob, ...]
    kinds: tuple[str, ...]
    instance: Fractions

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        jobs: Sequence[PolicyJob],
        free: Mapping[str, int],
        aware: bool,
    ) -> "GavelView":
        """Return the view of ``jobs`` on the ``free`` devices."""
        kinds = tuple(sorted(kind for kind, n in free.items() if n > 0))
        rates = np.zeros((len(jobs), len(kinds)))
        for row, job in enumerate(jobs):
            able = set(one_type(job, kinds))
            for column, kind in enumerate(kinds):
                if kind in able:
                    rate = snapshot.model.rate(job, shape_of(snapshot, kind, job.gang))
                    rates[row, column] = rate if np.isfinite(rate) else 0.0
        instance = jobs_alone(
            rates if aware else (rates > 0).astype(np.float64),
            np.array([job.gang for job in jobs], dtype=np.float64),
            np.array([free[kind] for kind in kinds], dtype=np.float64),
        )
        return cls(snapshot=snapshot, jobs=tuple(jobs), kinds=kinds, instance=instance)

    def with_pairs(self, barred: Collection[Pair] = ()) -> "GavelView":
        """Add all pairs of jobs that are faster together than one of them, best first.

        Args:
            barred: pairs of job IDs that have been slower together.
        """
        found: list[tuple[float, int, int, Floats]] = []
        alone = self.instance.alone
        model = self.snapshot.model
        for first, second in combinations(range(len(self.jobs)), 2):
            one, two = self.jobs[first], self.jobs[second]
            both = one.terms.shareable and two.terms.shareable and one.gang == two.gang
            if not both or (one.id, two.id) in barred:
                continue
            parts = np.array([model.pair(one, two, kind) for kind in self.kinds]).T
            rates = parts * alone[[first, second]]
            rates[:, (rates <= 0).any(axis=0)] = 0.0
            worth = float((parts.sum(axis=0) * (rates > 0).all(axis=0)).max(initial=0.0))
            if worth > 1.0:
                found.append((-worth, first, second, rates))
        found.sort(key=lambda pair: pair[:3])
        pairs = [
            Sharing(members=(first, second), rates=rates)
            for _, first, second, rates in found[:_MOST_PAIRS]
        ]
        return replace(self, instance=with_pairs(self.instance, pairs))

    def isolated_after(self, before: Mapping[str, Any]) -> dict[str, list[float]]:
        """Return by job: seconds in isolation for its steps so far, steps, and current rate."""
        rates = isolated_shares(self.instance)
        after = {}
        for job, rate in zip(self.jobs, rates, strict=True):
            seconds, steps, previous = before.get(str(job.id), (0.0, 0.0, float(rate)))
            more = max(0.0, job.facts.steps_done - steps)
            seconds += more / previous if previous > 0 else 0.0
            after[str(job.id)] = [seconds, job.facts.steps_done, float(rate)]
        return after

    def solve(
        self,
        objective: str,
        *,
        within: str,
        relative: bool,
        isolated: Mapping[str, Sequence[float]],
    ) -> dict[Combination, dict[str, float]]:
        """Solve for ``objective``, and return the fractions above 0."""
        if not self.jobs or not self.kinds:
            return {}
        matrix = self._matrix(objective, within, relative, isolated)
        if objective in _SYMMETRIC and len(self.instance.sharings) == len(self.jobs):
            matrix = self._evened(matrix)
        found: dict[Combination, dict[str, float]] = {}
        for sharing, row in zip(self.instance.sharings, matrix, strict=True):
            shares = {
                kind: float(share)
                for kind, share, rate in zip(self.kinds, row, sharing.rates[0], strict=True)
                if share > 1e-6 and rate > 0
            }
            if shares:
                found[tuple(self.jobs[member].id for member in sharing.members)] = shares
        return found

    def _evened(self, matrix: Floats) -> Floats:
        """Average fractions over equal jobs: the mean of optima is also optimal."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        for row, job in enumerate(self.jobs):
            key = (job.gang, job.types, *self.instance.alone[row].tolist())
            alike.setdefault(key, []).append(row)
        evened = matrix.copy()
        for rows in alike.values():
            evened[rows] = matrix[rows].mean(axis=0)
        return evened

    def _matrix(
        self, objective: str, within: str, relative: bool, isolated: Mapping[str, Sequence[float]]
    ) -> Floats:
        case = self.instance
        weights = np.array([max(1e-9, job.terms.weight) for job in self.jobs])
        solvers: dict[str, Callable[[], Floats]] = {
            "max-min": lambda: objectives.max_min_fairness(case, weights),
            "fifo": lambda: objectives.in_order(case, sorted(range(case.jobs), key=self._arrival)),
            "makespan": lambda: objectives.least_makespan(case, self._steps_left()),
            "finish-time": lambda: objectives.finish_time_fairness(
                case,
                steps_left=self._steps_left(),
                age=np.array([self.snapshot.now - job.submitted for job in self.jobs]),
                isolated_seconds=np.array([isolated[str(job.id)][0] for job in self.jobs]),
            ),
            "throughput": lambda: objectives.max_sum_throughput(case, relative=relative),
            "cost": lambda: objectives.max_sum_throughput(case, prices=self._prices()),
            "slo": lambda: objectives.max_sum_throughput(
                case, prices=self._prices(), least=self._needed()
            ),
            "hierarchical": lambda: self._hierarchical(weights, EntityPolicy(within)),
        }
        return solvers[objective]()

    def _hierarchical(self, weights: Floats, within: EntityPolicy) -> Floats:
        """Fill by water filling over tenants; jobs of a tenant in the order of arrival."""
        standing = {tenant.id: tenant.weight for tenant in self.snapshot.tenants}
        order = sorted(range(len(self.jobs)), key=self._arrival)
        owners = [account_of(self.jobs[row], standing) for row in order]
        entities = sorted(set(owners))
        case = Fractions(
            scale=self.instance.scale[order],
            capacity=self.instance.capacity,
            sharings=_reordered(self.instance, order),
        )
        found = water_fill(
            case,
            entity_of=[entities.index(owner) for owner in owners],
            entity_weights=np.array([max(1e-9, standing.get(owner, 1.0)) for owner in entities]),
            job_weights=weights[order],
            policies=[within] * len(entities),
        )
        back = np.empty_like(found)
        back[order] = found[: len(order)]
        back[len(order) :] = found[len(order) :]
        return back

    def _arrival(self, row: int) -> tuple[int, float, int]:
        job = self.jobs[row]
        return (-job.priority, job.submitted, job.id)

    def _steps_left(self) -> Floats:
        """Return the remaining work: steps if known, else the declared time, else one hour."""
        best = self.instance.alone.max(axis=1, initial=0.0)
        left = []
        for job, rate in zip(self.jobs, best, strict=True):
            if job.facts.steps_left is not None:
                left.append(max(0.0, job.facts.steps_left))
                continue
            seconds = _UNKNOWN_SECONDS
            if job.terms.estimate is not None:
                seconds = max(1.0, job.terms.estimate - job.facts.executed)
            left.append(float(rate) * seconds)
        # A nearly complete job counts as a little more, so that the numbers remain comparable.
        steps = np.array(left)
        enough: Floats = np.maximum(steps, 1e-5 * steps.max(initial=1.0))
        return enough

    def _needed(self) -> Floats:
        """Return the steps/s that each deadline requires; 0 without one, or after it."""
        left = self._steps_left()
        now = self.snapshot.now
        return np.array(
            [
                steps / (job.terms.deadline - now)
                if job.terms.deadline is not None and job.terms.deadline > now
                else 0.0
                for job, steps in zip(self.jobs, left, strict=True)
            ]
        )

    def _prices(self) -> Floats:
        types = self.snapshot.pool.types
        return np.array([types[kind].price if kind in types else 1.0 for kind in self.kinds])


def _reordered(instance: Fractions, order: Sequence[int]) -> tuple[Sharing, ...]:
    rank = {row: position for position, row in enumerate(order)}
    alone = tuple(
        Sharing(members=(position,), rates=instance.sharings[row].rates)
        for position, row in enumerate(order)
    )
    pairs = tuple(
        replace(pair, members=tuple(rank[member] for member in pair.members))
        for pair in instance.sharings[instance.jobs :]
    )
    return (*alone, *pairs)
