"""The program of a round, job by job, and the plan that its solution is."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scheduling.core.jobspec import Within
from scheduling.core.planning import Alloc, Part, Plan, PolicyJob
from scheduling.core.policies.engines.choice import Choices, choose
from scheduling.core.policies.sia.columns import Ints

Floats = NDArray[np.float64]


class Market:
    """Collects what every job could have; ``plan`` says what each gets."""

    def __init__(self, types: tuple[str, ...], capacity: Mapping[str, int]) -> None:
        self._types = types
        self._free = np.array([capacity[name] for name in types], dtype=np.int64)
        self._allocs: dict[int, Alloc] = {}
        self._jobs: list[PolicyJob] = []
        self._offers: list[tuple[Ints, Ints, Floats]] = []

    def pin(self, job: PolicyJob) -> None:
        """Leave a job what it holds, whatever else happens."""
        alloc = job.alloc
        if alloc is None:
            return
        self._allocs[job.id] = alloc
        for part in alloc.parts:
            if part.type in self._types:
                self._free[self._types.index(part.type)] -= part.n

    def offer(self, job: PolicyJob, kinds: Ints, sizes: Ints, costs: Floats) -> None:
        """A job's possible types and sizes with their costs; negative ones are worth having."""
        self._jobs.append(job)
        self._offers.append((kinds, sizes, costs))

    def plan(self, *, gap: float) -> Plan:
        """Solve the program.

        Raises:
            NoSolutionError: the solver gave up.
        """
        if self._offers:
            kinds, sizes, costs = (
                np.concatenate(part) for part in zip(*self._offers, strict=True)
            )
            counts = [len(offer[0]) for offer in self._offers]
            jobs = np.repeat(np.arange(len(counts)), counts)
            choices = Choices(
                costs=costs, jobs=jobs, kinds=kinds, sizes=sizes, capacity=self._free
            )
            for column in choose(choices, gap=gap):
                job = self._jobs[int(jobs[column])]
                self._allocs[job.id] = self._alloc(int(kinds[column]), int(sizes[column]))
        order = tuple(sorted(self._allocs))
        return Plan(allocs={job_id: self._allocs[job_id] for job_id in order}, order=order)

    def _alloc(self, kind: int, devices: int) -> Alloc:
        part = Part(n=devices, type=self._types[kind], level=Within.NODE.value)
        return Alloc(parts=(part,))
