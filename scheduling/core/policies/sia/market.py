"""The program of a round, job by job, and the plan that its solution is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scheduling.core.jobspec import Within
from scheduling.core.policies.engines.assignment import assign
from scheduling.core.policies.sia.program import Ints, SiaColumns
from scheduling.core.policy_interface import Alloc, Part, Plan, PolicyJob

Floats = NDArray[np.float64]


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
        worth: shape ``(jobs, columns)``; -inf: impossible.
        uses: devices of each type, by column.
        capacity: by type.
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
        """Fix a job's present allocation."""
        alloc = job.alloc
        if alloc is None:
            return
        self._allocs[job.id] = alloc
        for part in alloc.parts:
            if part.type in self._types:
                self._free[self._types.index(part.type)] -= part.n

    def offer(self, jobs: Sequence[PolicyJob], kinds: Ints, sizes: Ints, worth: Floats) -> None:
        """Possible types and sizes with their worth to each job; at most 0: better to wait."""
        if len(jobs):
            self._offers.append(_Offer(jobs, kinds, sizes, worth))

    def plan(self, *, gap: float) -> Plan:
        """Solve the program; of equal jobs the one with the smaller id gets more.

        Raises:
            NoSolutionError: the solver gave up.
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
        """All offers in one table, a column for each type and size that occurs in any.

        Raises:
            ValueError: nothing was offered.
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
