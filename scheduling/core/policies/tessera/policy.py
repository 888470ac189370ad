"""The policy of a round: rates, remaining work, value of each size, and one assignment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.jobspec import Within
from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.assignment import assign
from scheduling.core.policies.engines.room import present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policies.tessera.columns import (
    SizeColumns,
    allowed,
    columns_of,
    predicted_rates,
)
from scheduling.core.policies.tessera.prices import Prices, value_work
from scheduling.core.policies.tessera.worth import (
    JobStanding,
    believed,
    fair_speeds,
    horizons,
    net_speeds,
    remembered,
    restart_costs,
    steps_left,
    unfairness,
    weights,
    worths,
)
from scheduling.core.policy_interface import Alloc, Part, Plan, PolicyJob, Shape, Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_WAITS: Final = sentence(message("others-gain-more"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tessera:
    """Chooses each job's device type and size for early completion, without starvation.

    Attributes:
        value: ``prices``: work is valued at prices of devices; ``time``: by the powers of speed
            and remaining work.
        spell: seconds for which current prices hold; later the usual ones apply.
        tilt: exponent of the remaining time in the weight at prices.
        power: power of the speed in the objective, by time.
        order: exponent of the remaining work, by time.
        belief: factor on a guess of the remaining work.
        horizon: seconds over which a restart must pay.
        trust: number of horizons that are added to a job's own time between restarts.
        caution: factor on the restart seconds of a running job.
        growth: assumed remaining steps of a job of unknown size for each finished step.
        start: minimum assumed seconds on its smallest size for a job of unknown size.
        first: assumed seconds of a job that has never run.
        scaling: exponent of the assumed speed-up by size before the first run.
        unseen: power by which untried sizes are discounted.
        spread: factor for several nodes if a job was only measured on one.
        fairness: finish-time fairness above which a job counts more.
        rise: growth of that weight beyond it.
        finer: maximum number of sizes between consecutive powers of two.
        remember: estimate a job by its application's past jobs.
        gap: distance from the optimum at which the search may stop.
    """

    value: str = parameter("prices", sentence("param-value"), choices=("prices", "time"))
    spell: float = parameter(1800.0, sentence("param-spell"), low=60.0, high=86_400.0)
    tilt: float = parameter(0.15, sentence("param-tilt"), low=0.0, high=1.0)
    power: float = parameter(0.5, sentence("param-speed-power"), low=0.1, high=1.0)
    order: float = parameter(0.5, sentence("param-work-power"), low=0.0, high=2.0)
    belief: float = parameter(0.6, sentence("param-guess-power"), low=0.0, high=1.0)
    horizon: float = parameter(1800.0, sentence("param-restart-payback"), low=60.0, high=86_400.0)
    trust: float = parameter(2.0, sentence("param-horizon"), low=0.5, high=1e6)
    caution: float = parameter(2.0, sentence("param-move-cost"), low=1.0, high=20.0)
    growth: float = parameter(1.0, sentence("param-steps"), low=0.0, high=10.0)
    start: float = parameter(400.0, sentence("param-least-work"), low=1.0, high=86_400.0)
    first: float = parameter(400.0, sentence("param-prior-work"), low=1.0, high=86_400.0)
    scaling: float = parameter(0.85, sentence("param-speedup-power"), low=0.0, high=1.0)
    unseen: float = parameter(0.15, sentence("param-discount-power"), low=0.0, high=1.0)
    spread: float = parameter(0.9, sentence("param-spread-factor"), low=0.1, high=1.0)
    fairness: float = parameter(0.9, sentence("param-unfair-above"), low=0.1, high=10.0)
    rise: float = parameter(1.0, sentence("param-unfair-power"), low=0.0, high=8.0)
    finer: int = parameter(0, sentence("param-sizes"), low=0, high=3)
    remember: bool = parameter(False, sentence("param-history"))
    gap: float = parameter(1e-3, sentence("param-assignment-gap"), low=0.0, high=0.1)

    name: ClassVar[str] = "tessera"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "early completion; restarts count as lost seconds; no starvation"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.GOODPUT})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Plan the round by an assignment problem."""
        there = present(snapshot)
        after: dict[str, Any] = remembered(there, state) if self.remember else {}
        allocs = {
            job.id: job.alloc
            for job in there
            if job.alloc is not None and not job.terms.preemptible
        }
        jobs = [job for job in there if job.id not in allocs]
        columns = columns_of(snapshot, jobs, self.finer)
        free = _left_over(snapshot, columns, allocs)
        prices = Prices.stored(state, columns.types)
        notes: dict[str, Any] = {}
        if jobs and columns.shapes:
            worth, weight = self._worths(snapshot, jobs, columns, after, prices)
            found = assign(worth, columns.uses(), free, gap=self.gap)
            prices = prices.after(
                found.prices / _mean_weight(weight, columns, found.choices), snapshot.round_seconds
            )
            notes = {"gap": round(found.gap, 6), "exact": found.exact}
            for job, column in zip(jobs, found.choices.tolist(), strict=True):
                if column >= 0:
                    allocs[job.id] = _alloc(columns.shapes[column])
        if self.value == "prices":
            after["prices"] = {**state.get("prices", {}), **prices.to_state()}
        order = sorted(allocs, key=lambda job_id: (-allocs[job_id].devices, job_id))
        why = {job.id: _WAITS for job in jobs if job.id not in allocs}
        plan = Plan(
            allocs={job.id: allocs[job.id] for job in there if job.id in allocs},
            order=tuple(order),
            why=why,
            notes=notes,
        )
        return plan, after

    def _worths(
        self,
        snapshot: Snapshot,
        jobs: list[PolicyJob],
        columns: SizeColumns,
        state: Mapping[str, Any],
        prices: Prices,
    ) -> tuple[Floats, Floats]:
        """Compute the value of each column to each job, and each job's weight."""
        rates = predicted_rates(
            snapshot,
            jobs,
            columns,
            allowed(columns, snapshot, jobs),
            scaling=self.scaling,
            unseen=self.unseen,
            spread=self.spread,
        )
        sizes = {name: sorted(past) for name, past in state.get("sizes", {}).items()}
        left = steps_left(
            jobs,
            rates,
            sizes=sizes,
            growth=self.growth,
            start=self.start,
            first=self.first,
        )
        costs = restart_costs(snapshot, jobs, columns, self.caution)
        speeds = net_speeds(
            rates.table, left.steps, costs, horizons(jobs, self.horizon, self.trust)
        )
        capacity = [snapshot.capacity[name] for name in columns.types]
        fair = fair_speeds(rates.table, columns, capacity, len(jobs))
        unfair = unfairness(snapshot, jobs, JobStanding(left.steps, fair))
        weight = weights(jobs, unfair, bound=self.fairness, rise=self.rise)
        if self.value == "prices":
            valued = value_work(rates.table, left.steps, columns, prices, self.spell)
            tilts = valued.tilts(np.where(left.guessed, self.belief, 1.0) * self.tilt)
            worth = (tilts * valued.step)[:, None] * speeds
        else:
            least = np.where(rates.least > 0.0, rates.least, np.inf)
            work = believed(left.steps / least, left.guessed, self.belief)
            worth = worths(rates, speeds, work, power=self.power, order=self.order)
        return weight[:, None] * worth, weight


def _mean_weight(weight: Floats, columns: SizeColumns, choices: Ints) -> float:
    """Average the weights of the jobs over the devices that they get."""
    devices = np.where(choices >= 0, columns.sizes[choices], 0)
    return float(np.average(weight, weights=devices)) or 1.0 if devices.any() else 1.0


def _alloc(shape: Shape) -> Alloc:
    return Alloc(parts=(Part(n=shape.devices, type=shape.type, level=Within.NODE.value),))


def _left_over(snapshot: Snapshot, columns: SizeColumns, allocs: Mapping[int, Alloc]) -> Ints:
    """Count the devices of each type, except those that jobs must retain."""
    free = np.array([snapshot.capacity[name] for name in columns.types], dtype=np.int64)
    for alloc in allocs.values():
        for part in alloc.parts:
            if part.type in columns.types:
                free[columns.types.index(part.type)] -= part.n
    return np.maximum(free, 0)
