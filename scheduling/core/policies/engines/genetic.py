"""Search: which devices of which node each job gets, by a genetic algorithm over whole matrices.

A genome is a matrix of jobs by nodes that says how many devices of a node a job has; a population
is an array of them, so that every step of the algorithm is one over all genomes at once.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Genomes = NDArray[np.int16]
Bools = NDArray[np.bool_]

_PATIENCE: Final = 20
_NEVER_ZERO: Final = 1e-3
# How often: a row is reset, a genome is thinned and a device of it taken, a job takes from others,
# and its devices come from the emptiest nodes.
_RESET, _THIN, _ZERO, _GREEDY, _PACKED = 0.1, 0.1, 0.1, 0.3, 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a genome is worth, and which genomes there are.

    Attributes:
        capacity: devices of each node.
        speedups: of each job by nodes and devices, shape ``(jobs, nodes + 1, devices + 1)``.
        sizes: the largest size of each job that is no more than so many devices, 0 for none.
        current: the genome that is in force.
        factors: by which a job's speed-up falls if its row differs from the current one.
        pinned: jobs whose rows must not change.
        power: of the mean over jobs; the lower, the more equal.
        weight: on every speed-up before a small constant is added.
    """

    capacity: Genomes
    speedups: Floats
    sizes: Genomes
    current: Genomes
    factors: Floats
    pinned: Bools
    power: float
    weight: float

    def fitness(self, genomes: Genomes) -> Floats:
        """The power mean of the jobs' speed-ups, by genome."""
        devices = genomes.sum(axis=2)
        nodes = (genomes > 0).sum(axis=2)
        values = self.speedups[np.arange(genomes.shape[1]), nodes, devices]
        changed = (genomes != self.current).any(axis=2)
        values = np.where(changed, values * self.factors, values) * self.weight + _NEVER_ZERO
        if self.power == 0.0:
            return np.asarray(np.exp(np.log(values).mean(axis=1)))
        mean = (values**self.power).mean(axis=1)
        return np.asarray(mean ** (1.0 / self.power))

    def repaired(self, genomes: Genomes, rng: np.random.Generator) -> Genomes:
        """Legal genomes near the given ones.

        One job on several nodes per node at most; allowed sizes; no more than a node has, where
        by chance the first or the last jobs come first; pinned rows as they are.
        """
        genomes = np.minimum(genomes, self.capacity)
        spread = (genomes > 0) & ((genomes > 0).sum(axis=2) > 1)[:, :, None]
        turns = rng.random(genomes.shape[:2])[:, :, None] * spread
        genomes = np.where(spread & (turns < turns.max(axis=1, keepdims=True)), 0, genomes)
        genomes = self._sized(genomes)
        half = len(genomes) // 2
        free = self.capacity - (self.current * self.pinned[:, None]).sum(axis=0)
        genomes[:, self.pinned] = 0
        genomes[:half] = _clipped(genomes[:half], free)
        genomes[half:] = _clipped(genomes[half:, ::-1], free)[:, ::-1]
        genomes = self._sized(genomes)
        genomes[:, self.pinned] = self.current[self.pinned]
        return genomes

    def _sized(self, genomes: Genomes) -> Genomes:
        """Every row cut down to an allowed size, the last nodes first."""
        devices = genomes.sum(axis=2)
        allowed = self.sizes[np.arange(genomes.shape[1]), devices]
        if (allowed == devices).all():
            return genomes
        kept = np.minimum(genomes.cumsum(axis=2), allowed[:, :, None])
        sized: Genomes = np.diff(kept, axis=2, prepend=0).astype(np.int16)
        return sized


def search(
    problem: Problem,
    start: Genomes,
    *,
    population: int,
    generations: int,
    rng: np.random.Generator,
) -> Genomes:
    """The last population, the fittest first; it holds the best that was ever seen.

    Args:
        problem: what is searched.
        start: genomes to begin with, at least one; they are repaired first.
        population: genomes of each generation.
        generations: at most; twenty in a row without a better one end the search.
        rng: all chance.
    """
    copies = start[np.arange(population) % len(start)]
    copies[len(start) :] = _mutated(problem, copies[len(start) :], rng)
    genomes = problem.repaired(copies, rng)
    genomes[0] = problem.current
    values = problem.fitness(genomes)
    best, since = float(values.max()), 0
    for _ in range(generations):
        children = problem.repaired(_mutated(problem, _crossed(genomes, values, rng), rng), rng)
        genomes, values = _fittest(
            np.concatenate([genomes, children]),
            np.concatenate([values, problem.fitness(children)]),
            population,
        )
        since = 0 if values[0] > best else since + 1
        best = float(values[0])
        if since >= _PATIENCE:
            break
    return genomes[np.argsort(-values, kind="stable")]


def _fittest(genomes: Genomes, values: Floats, count: int) -> tuple[Genomes, Floats]:
    """The best genomes; of those that are worth the same only one, where others are left."""
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    fresh = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    chosen = np.concatenate([order[fresh], order[~fresh]])[:count]
    return genomes[chosen], values[chosen]


def _crossed(genomes: Genomes, values: Floats, rng: np.random.Generator) -> Genomes:
    """Children of parents that won a duel each: some rows of one, the rest of the other."""
    count, jobs = genomes.shape[:2]
    duels = rng.integers(count, size=(2, 2, count))
    parents = np.where(values[duels[0]] >= values[duels[1]], duels[0], duels[1])
    cut = rng.integers(jobs + 1, size=count)
    first = np.arange(jobs) < cut[:, None]
    children: Genomes = np.where(first[:, :, None], genomes[parents[0]], genomes[parents[1]])
    return children


def _mutated(problem: Problem, genomes: Genomes, rng: np.random.Generator) -> Genomes:
    """Some rows as they are in force, some devices taken away, some jobs given another size."""
    count, jobs, nodes = genomes.shape
    reset = rng.random((count, jobs)) < _RESET
    genomes = np.where(reset[:, :, None], problem.current, genomes)
    thinned = np.flatnonzero(rng.random(count) < _THIN)
    genomes[thinned] *= rng.random((len(thinned), jobs, nodes)) >= _ZERO
    for _ in range(2):
        _resized(problem, genomes, rng)
    return genomes


def _resized(problem: Problem, genomes: Genomes, rng: np.random.Generator) -> None:
    """Give one job of each genome another size, on free devices or, by chance, on anybody's."""
    count, jobs, nodes = genomes.shape
    if not count:
        return
    every = np.arange(count)
    job = rng.integers(jobs, size=count)
    genomes[every, job] = 0
    greedy = rng.random((count, 1)) < _GREEDY
    packed = rng.random((count, 1)) < _PACKED
    free = problem.capacity - genomes.sum(axis=1)
    room = np.where(greedy, problem.capacity, np.maximum(free, 0))
    # A job that is too large for all nodes together has no size, and stays without devices.
    largest = np.maximum(problem.sizes[job].max(axis=1), 1)
    wanted = problem.sizes[job, rng.integers(1, largest + 1, size=count, dtype=np.int16)]
    order = np.argsort(rng.random((count, nodes)) - free * packed)
    filled = np.minimum(np.take_along_axis(room, order, axis=1).cumsum(axis=1), wanted[:, None])
    row = np.zeros((count, nodes), dtype=np.int16)
    np.put_along_axis(row, order, np.diff(filled, axis=1, prepend=0).astype(np.int16), axis=1)
    # Others give way where a greedy job takes what is not free.
    over = greedy & (row > free)
    genomes *= ~over[:, None, :]
    genomes[every, job] = row


def _clipped(genomes: Genomes, free: Genomes) -> Genomes:
    """No more than is free of each node, the first jobs first."""
    kept = np.minimum(genomes.cumsum(axis=1), free)
    clipped: Genomes = np.diff(kept, axis=1, prepend=0).astype(np.int16)
    return clipped
