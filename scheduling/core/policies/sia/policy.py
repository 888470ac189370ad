"""Sia's policy: restart factor, fairness power, and one integer program per round.

Section numbers are those of the SOSP '23 paper; details follow its artefact. Each job's row of
goodputs is divided by its smallest entry, damped by the restart factor where it would have to
move, raised to the fairness power, and the sum over all jobs is optimised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.jobspec import Within
from scheduling.core.messages import sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.assignment import assign
from scheduling.core.policies.engines.room import present, shape_of
from scheduling.core.policies.parameters import parameter
from scheduling.core.policies.sia.program import (
    NOTHING,
    Ints,
    SiaColumns,
    columns_of,
    scaled_goodputs,
)
from scheduling.core.policy_interface import Alloc, Kind, Part, Plan, PolicyJob, Snapshot

Floats = NDArray[np.float64]
_CLIP: Final = 3_000.0
#: Among equal solutions, prefer the one that moves fewer jobs; costs differ by hundredths.
_STAYING: Final = 1e-5
#: Checkpoint costs in seconds that the artefact measured on a real cluster, by application.
_MEASURED_RESTARTS: Final = MappingProxyType(
    {"deepspeech2": 25.0, "imagenet": 250.0, "cifar10": 30.0, "bert": 120.0, "yolov3": 45.0}
)


@dataclass(frozen=True, slots=True)
class _Offer:
    """Jobs with the same possible types and sizes, and the value of each to each job."""

    jobs: Sequence[PolicyJob]
    kinds: Ints
    sizes: Ints
    worth: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketProgram:
    """The input of the solver: one choice for each job under the capacities.

    Attributes:
        jobs: ids, rising.
        allocs: allocation of each column.
        worth: array ``(jobs, columns)``; -inf where impossible.
        uses: devices of each type, by column.
        capacity: devices by type.
    """

    jobs: tuple[int, ...]
    allocs: tuple[Alloc, ...]
    worth: Floats
    uses: Ints
    capacity: Ints


class Market:
    """Collects the options of every job; ``plan`` returns the allocations."""

    def __init__(self, columns: SiaColumns, capacity: Mapping[str, int]) -> None:
        self._types = columns.types
        self._free = np.array([capacity[name] for name in self._types], dtype=np.int64)
        self._allocs: dict[int, Alloc] = {}
        self._offers: list[_Offer] = []

    def pin(self, job: PolicyJob) -> None:
        """Fix the current allocation of a job."""
        alloc = job.alloc
        if alloc is None:
            return
        self._allocs[job.id] = alloc
        for part in alloc.parts:
            if part.type in self._types:
                self._free[self._types.index(part.type)] -= part.n

    def offer(self, jobs: Sequence[PolicyJob], kinds: Ints, sizes: Ints, worth: Floats) -> None:
        """Offer types and sizes with their worth to each job; at most 0: waiting is better."""
        if len(jobs):
            self._offers.append(_Offer(jobs, kinds, sizes, worth))

    def plan(self, *, gap: float) -> Plan:
        """Solve the program; of equal jobs the one with the smaller id gets more.

        Raises:
            NoSolutionError: the solver found no solution.
        """
        if self._offers:
            program = self.program()
            found = assign(program.worth, program.uses, program.capacity, gap=gap)
            for job_id, choice in zip(program.jobs, found.choices.tolist(), strict=True):
                if choice >= 0:
                    self._allocs[job_id] = program.allocs[choice]
        order = tuple(sorted(self._allocs))
        return Plan(allocs={job_id: self._allocs[job_id] for job_id in order}, order=order)

    def program(self) -> MarketProgram:
        """Build the program from all offers, with a column for each type and size in any of them.

        Raises:
            ValueError: there are no offers.
        """
        keys = [offer.kinds * (1 << 32) + offer.sizes for offer in self._offers]
        columns = np.unique(np.concatenate(keys))
        kinds, sizes = columns >> 32, columns & ((1 << 32) - 1)
        jobs = [job.id for offer in self._offers for job in offer.jobs]
        worth = np.full((len(jobs), len(columns)), -np.inf)
        row = 0
        for offer, key in zip(self._offers, keys, strict=True):
            below = row + len(offer.jobs)
            worth[row:below, np.searchsorted(columns, key)] = offer.worth
            row = below
        uses = np.zeros((len(columns), len(self._types)), dtype=np.int64)
        uses[np.arange(len(columns)), kinds] = sizes
        order = np.argsort(np.array(jobs), kind="stable")
        return MarketProgram(
            jobs=tuple(jobs[index] for index in order.tolist()),
            allocs=tuple(
                _alloc(self._types[kind], size)
                for kind, size in zip(kinds.tolist(), sizes.tolist(), strict=True)
            ),
            worth=worth[order],
            uses=uses,
            capacity=np.maximum(self._free, 0),
        )


@lru_cache(maxsize=1_024)
def _alloc(device_type: str, devices: int) -> Alloc:
    return Alloc(parts=(Part(n=devices, type=device_type, level=Within.NODE.value),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sia:
    """Chooses each job's device type and size to maximise the sum of scaled goodputs.

    Attributes:
        fairness: the power; negative: slow jobs weigh more.
        waiting_cost: waiting cost of a job without devices; one at its smallest goodput costs 1.
        growth: maximum ratio of a job's size to its largest size so far.
        most_devices: maximum number of devices of one job.
        request_caps_batch: goodput is estimated for batches up to the requested one only.
        bootstrap: a job that has not run yet is judged by a short profile on each type.
        gap: accepted certified distance from the optimum.
    """

    fairness: float = parameter(-0.5, sentence("param-fairness"), low=-5.0, high=5.0)
    waiting_cost: float = parameter(1.1, sentence("param-waiting-cost"), low=1.0, high=100.0)
    growth: int = parameter(2, sentence("param-growth"), low=2, high=64)
    most_devices: int = parameter(64, sentence("param-most-devices"), low=1, high=4096)
    request_caps_batch: bool = parameter(True, sentence("param-fixed-batch"))
    bootstrap: bool = parameter(False, sentence("param-single-speed"))
    gap: float = parameter(1e-3, sentence("param-solver-gap"), low=0.0, high=0.1)

    name: ClassVar[str] = "sia"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "goodput over device types and sizes, by an integer program"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.GOODPUT})
    stateless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject a power of 0, for which all sizes have the same value."""
        if self.fairness == 0.0:
            raise ValueError("fairness is 0; use a negative or a positive power")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Solve the program for all jobs that wait or run."""
        return self.market(snapshot).plan(gap=self.gap), state

    def market(self, snapshot: Snapshot) -> Market:
        """Return the options of every job and their values, before the decision."""
        columns = columns_of(snapshot.pool.types, snapshot.capacity)
        market = Market(columns, snapshot.capacity)
        free = []
        for job in present(snapshot):
            if job.alloc is not None and (job.facts.recovering or not job.terms.preemptible):
                market.pin(job)
            else:
                free.append(job)
        elastic = [job for job in free if job.terms.kind is not Kind.RIGID]
        if elastic:
            worth = self._elastic_worth(snapshot, elastic, columns)
            market.offer(elastic, columns.kinds, columns.sizes, worth)
        for job in free:
            if job.terms.kind is Kind.RIGID:
                self._offer_rigid(market, snapshot, job, columns)
        return market

    def _elastic_worth(
        self, snapshot: Snapshot, jobs: Sequence[PolicyJob], columns: SiaColumns
    ) -> Floats:
        rows = scaled_goodputs(
            snapshot,
            jobs,
            columns,
            limits=[self._most_devices(snapshot, job) for job in jobs],
            within_request=self.request_caps_batch,
            bootstrap=self.bootstrap,
        )
        return self._worth(snapshot, jobs, rows, [columns.held(job.alloc) for job in jobs])

    def _most_devices(self, snapshot: Snapshot, job: PolicyJob) -> int:
        """Return a job's maximum replicas now: twice its largest size on any type so far.

        It starts with one; if its owner does not allow this, ``scaled_goodputs`` uses the smallest
        size of each type.
        """
        if job.terms.kind is Kind.ELASTIC:
            return job.terms.scale.maximum if job.terms.scale else job.gang
        model = snapshot.model
        profiled = model.profiled(job)
        most = 1
        for name, seen in profiled.items():
            if name in snapshot.capacity:
                grown = self.growth * (seen // model.replica(job, name))
                most = max(most, min(grown, self.most_devices, model.most_devices(job, name)))
        return most

    def _offer_rigid(
        self, market: Market, snapshot: Snapshot, job: PolicyJob, columns: SiaColumns
    ) -> None:
        """Offer one column per type, worth the gang times the speed-up over the slowest type."""
        kinds, rates = [], []
        for kind, name in enumerate(columns.types):
            rate = snapshot.model.rate(job, shape_of(snapshot, name, job.gang))
            if rate > 0.0 and (not job.types or name in job.types):
                kinds.append(kind)
                rates.append(rate)
        if not kinds:
            return
        row = np.array(rates) * job.gang / min(rates)
        held = None
        if job.alloc is not None and job.alloc.parts[0].type in columns.types:
            kind = columns.types.index(job.alloc.parts[0].type)
            held = kinds.index(kind) if kind in kinds else None
        worth = self._worth(snapshot, [job], row[None, :], [held])
        sizes = np.full(len(kinds), job.gang, dtype=np.int64)
        market.offer([job], np.array(kinds, dtype=np.int64), sizes, worth)

    def _worth(
        self,
        snapshot: Snapshot,
        jobs: Sequence[PolicyJob],
        rows: Floats,
        held: Sequence[int | None],
    ) -> Floats:
        """Compute the value of each column in the objective; at most 0 if waiting is better."""
        running = [row for row, column in enumerate(held) if column is not None]
        columns = [column for column in held if column is not None]
        factors = np.ones(len(jobs))
        factors[running] = [self._restart_factor(snapshot, jobs[row]) for row in running]
        moved = rows * factors[:, None]
        moved[running, columns] = rows[running, columns]
        with np.errstate(divide="ignore"):
            powered = np.minimum(np.round(moved**self.fairness, 2), _CLIP)
        sign = 1.0 if self.fairness < 0 else -1.0
        worth = np.where(rows <= NOTHING, -np.inf, self.waiting_cost - sign * powered)
        worth[running, columns] += _STAYING
        return worth

    def _restart_factor(self, snapshot: Snapshot, job: PolicyJob) -> float:
        """Return the damping factor of moves: the part of life not lost to restarts (eq. 2)."""
        cost = _MEASURED_RESTARTS.get(job.terms.application or "")
        if cost is None:
            cost = snapshot.model.restart_seconds(job)
        age = snapshot.now - job.submitted
        tried = job.facts.gpu_seconds if job.terms.kind is Kind.RIGID else age
        if tried < cost:
            return 1.0
        return max(age - job.facts.restarts * cost, 0.0) / (age + cost)
