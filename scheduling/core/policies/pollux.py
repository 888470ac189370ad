"""Pollux: the devices of all jobs co-adapted for goodput (Qiao et al., OSDI '21, section 4.2).

A job's speed-up is its goodput, at its best batch, over that on a fair share of the devices. A
genetic search finds the matrix of jobs and nodes with the best power mean of the speed-ups;
speed-ups of jobs that would restart count less. Jobs are homogeneous in Pollux: with several
types, every job remains on one of them, and each type is searched separately.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, Final

import numpy as np

from scheduling.core.messages import sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.genetic import Floats, GeneticProblem, Genomes, search
from scheduling.core.policies.engines.greedy import meant, serve_rest
from scheduling.core.policies.engines.room import FreeDevices, borrows, is_pinned, present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import (
    Alloc,
    JobPhase,
    Part,
    Plan,
    PolicyJob,
    Shape,
    Snapshot,
    grid_types,
)

_REMEMBERED: Final = 20
_EFFORT: Final = 2e7
_LEAST_FACTOR: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux:
    """Searches with a genetic algorithm for the allocation with the best mean speed-up.

    Attributes:
        fairness: power of the mean (the paper's p); lower values give more equal results.
        population: matrices of each generation.
        generations: maximum number; fewer for matrices whose search would take minutes.
        growth: maximum ratio of a job's devices to its largest measured number.
        most_devices: maximum number of devices of one job.
    """

    fairness: float = parameter(-1.0, sentence("param-mean-power"), low=-10.0, high=1.0)
    population: int = parameter(100, sentence("param-population"), low=4, high=400)
    generations: int = parameter(100, sentence("param-generations"), low=1, high=1000)
    growth: int = parameter(2, sentence("param-most-growth"), low=1, high=64)
    most_devices: int = parameter(64, sentence("param-most-devices"), low=1, high=4096)

    name: ClassVar[str] = "pollux"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "best mean goodput over a fair share, by genetic search"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.GOODPUT})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Search each type; the state holds the best matrices of the last round, by type."""
        jobs = sorted(
            present(snapshot), key=lambda job: (job.facts.gpu_seconds, job.submitted, job.id)
        )
        room = FreeDevices(snapshot)
        lent = [job for job in jobs if borrows(job)]
        own = [job for job in jobs if not borrows(job)]
        allocs = room.take_pinned(lent)
        kinds = _kinds(snapshot, own)
        after: dict[str, Any] = {}
        for kind in room.kinds:
            mine = [job for job in own if kinds.get(job.id) == kind]
            nodes = _columns(snapshot, kind, room.free(kind))
            if mine and len(nodes):
                earlier = state.get(kind, {})
                found, after[kind] = self._searched(snapshot, kind, mine, nodes, earlier)
                allocs |= found
        for job in own:
            if job.id in allocs:
                room.take(job, allocs[job.id])
        serve_rest(lent, room, allocs)
        return meant(allocs, jobs), after

    def _searched(
        self,
        snapshot: Snapshot,
        kind: str,
        jobs: Sequence[PolicyJob],
        nodes: Genomes,
        state: Mapping[str, Any],
    ) -> tuple[dict[int, Alloc], dict[str, Any]]:
        """Search allocations on one type; also return the initial population of the next round."""
        problem = self._problem(snapshot, kind, jobs, nodes)
        effort = self.population * problem.current.size
        rng = np.random.default_rng([snapshot.seed, snapshot.round_number, len(jobs)])
        genomes = search(
            problem,
            _start(problem, jobs, state),
            population=self.population,
            generations=max(1, min(self.generations, int(_EFFORT / effort))),
            rng=rng,
        )
        allocs = {
            job.id: _alloc(job, kind, [int(n) for n in row])
            for job, row in zip(jobs, genomes[0], strict=True)
            if row.any()
        }
        best = genomes[:_REMEMBERED]
        rows = {str(job.id): _written(best[:, index]) for index, job in enumerate(jobs)}
        return allocs, {"nodes": len(nodes), "rows": rows}

    def _problem(
        self, snapshot: Snapshot, kind: str, jobs: Sequence[PolicyJob], capacity: Genomes
    ) -> GeneticProblem:
        total = int(capacity.sum())
        sizes = np.zeros((len(jobs), total + 1), dtype=np.int16)
        for index, job in enumerate(jobs):
            most = min(self._most(snapshot, job, kind), total)
            types = grid_types(job.grids)
            allowed = [
                n
                for n in range(most + 1)
                if job.allows(n) and (not types or kind in job.types_at(n))
            ]
            sizes[index, allowed] = allowed
        sizes = np.maximum.accumulate(sizes, axis=1)
        fair = ceil(total / len(jobs))
        current = _current(jobs, kind, capacity)
        # A job may hold more than it could have now, as after another policy.
        largest = max(int(sizes.max()), int(current.sum(axis=1).max()))
        return GeneticProblem(
            capacity=capacity,
            speedups=_speedups(snapshot, kind, jobs, (len(capacity), largest), fair),
            sizes=sizes,
            current=current,
            factors=np.array([_restart_factor(snapshot, job, kind) for job in jobs]),
            pinned=np.array([is_pinned(job) for job in jobs]),
            power=self.fairness,
            weight=len(capacity) / total,
        )

    def _most(self, snapshot: Snapshot, job: PolicyJob, kind: str) -> int:
        """Return the growth limit from observed sizes, at least the smallest size."""
        least = job.least
        held = job.alloc.devices if is_pinned(job) and job.alloc else 0
        seen = snapshot.model.profiled(job).get(kind, 0)
        limit = snapshot.model.most_devices(job, kind)
        return max(least, held, min(max(self.growth * seen, 1), self.most_devices, limit))


def _kinds(snapshot: Snapshot, jobs: Sequence[PolicyJob]) -> dict[int, str]:
    """Return each job's fixed type: the current one, or the one with most devices per job."""
    kinds: dict[int, str] = {}
    count = dict.fromkeys(sorted(snapshot.capacity), 0)
    held = {job.id: job.alloc.parts[0].type for job in jobs if job.alloc}
    for job in sorted(jobs, key=lambda job: (job.id not in held, job.submitted, job.id)):
        types = job.types or grid_types(job.grids)
        able = [kind for kind in count if not types or kind in types]
        kind = held.get(job.id)
        if kind not in count:
            able.sort(key=lambda kind: (-snapshot.capacity[kind] / (1 + count[kind]), kind))
            kind = next(iter(able), None)
        if kind is not None:
            kinds[job.id] = kind
            count[kind] += 1
    return kinds


def _columns(snapshot: Snapshot, kind: str, total: int) -> Genomes:
    """Return the devices of each virtual node: complete nodes, then the rest of the guarantee."""
    info = snapshot.pool.types.get(kind)
    each = max(1, info.node_devices if info else total)
    whole, rest = divmod(total, each)
    return np.array([each] * whole + [rest] * bool(rest), dtype=np.int16)


def _speedups(
    snapshot: Snapshot, kind: str, jobs: Sequence[PolicyJob], most: tuple[int, int], fair: int
) -> Floats:
    """Return goodput over that of a fair share, by job, nodes and devices; else the devices."""
    shapes = [
        Shape(kind, count, devices)
        for devices in range(1, most[1] + 1)
        for count in range(1, min(most[0], devices) + 1)
    ]
    table = np.zeros((len(jobs), min(most) + 1, most[1] + 1))
    if not shapes:
        return table
    goodputs = snapshot.model.goodputs(jobs, shapes)
    shares = sorted({_fair(snapshot, job, kind, fair) for job in jobs})
    bases = snapshot.model.goodputs(jobs, [Shape(kind, 1, n) for n in shares])
    _, counts, devices = zip(*shapes, strict=True)
    for index, job in enumerate(jobs):
        base = bases[index, shares.index(_fair(snapshot, job, kind, fair))]
        known = base > 0.0
        values = goodputs[index] / base if known else np.array(devices, dtype=np.float64)
        table[index, counts, devices] = np.nan_to_num(values)
    return table


def _fair(snapshot: Snapshot, job: PolicyJob, kind: str, fair: int) -> int:
    """Return a fair share of the devices, limited to what the job can use."""
    return max(1, min(fair, snapshot.model.most_devices(job, kind)))


def _restart_factor(snapshot: Snapshot, job: PolicyJob, kind: str) -> float:
    """Return the running fraction of a job's life if it restarts once more.

    The factor is always above 0: otherwise a job submitted now would not gain from devices.
    """
    age = max(0.0, snapshot.now - job.submitted)
    delay = snapshot.model.restart_seconds(job, kind)
    return max(age - job.facts.restarts * delay, _LEAST_FACTOR) / max(age + delay, 1.0)


def _current(jobs: Sequence[PolicyJob], kind: str, capacity: Genomes) -> Genomes:
    """Build the current matrix; jobs with unknown nodes are put on those with most room."""
    current = np.zeros((len(jobs), len(capacity)), dtype=np.int16)
    free = capacity.copy()
    unknown: list[tuple[int, int]] = []
    for index, job in enumerate(jobs):
        alloc = job.alloc
        if alloc is None or alloc.parts[0].type != kind or job.phase is not JobPhase.RUNNING:
            continue
        layout = np.array(alloc.layout or (), dtype=np.int16)
        fits = len(layout) == len(capacity) and layout.sum() == alloc.devices
        if fits and (layout >= 0).all() and (layout <= free).all():
            current[index] = layout
            free -= layout
        else:
            unknown.append((index, alloc.devices))
    for index, devices in unknown:
        left = min(devices, int(free.sum()))
        while left:
            node = int(free.argmax())
            taken = min(left, int(free[node]))
            current[index, node] += taken
            free[node] -= taken
            left -= taken
    return current


def _start(
    problem: GeneticProblem, jobs: Sequence[PolicyJob], state: Mapping[str, Any]
) -> Genomes:
    """Build the initial population: the current matrix, and the last best ones with new jobs."""
    count, nodes = problem.current.shape
    start = np.zeros((1 + _REMEMBERED, count, nodes), dtype=np.int16)
    start[0] = problem.current
    rows = state.get("rows", {}) if state.get("nodes") == nodes else {}
    for index, job in enumerate(jobs):
        for genome, row in enumerate(rows.get(str(job.id), ())[:_REMEMBERED], start=1):
            start[genome, index, row[::2]] = row[1::2]
    return start


def _written(rows: Genomes) -> list[list[int]]:
    """Convert a job's rows to stored form: each of its nodes, with its devices there."""
    written: list[list[int]] = [[] for _ in rows]
    for genome, node in np.argwhere(rows).tolist():
        written[genome] += (node, int(rows[genome, node]))
    return written


def _alloc(job: PolicyJob, kind: str, row: list[int]) -> Alloc:
    """Convert devices by node into an allocation; return the current allocation if equal."""
    alloc = Alloc(parts=(Part(n=sum(row), type=kind),), layout=tuple(row))
    return job.alloc if is_pinned(job) and job.alloc else alloc
