"""Genetic search over matrices of jobs by nodes with their numbers of devices.

A genome is a matrix of jobs by nodes with the devices of each job on each node. A population is
an array of genomes, so that every step of the algorithm covers many genomes at once. Most of a
genome is empty, so steps that change few rows or columns extract only these.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

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
class GeneticProblem:
    """The fitness of genomes, and the valid ones.

    Attributes:
        capacity: devices of each node.
        speedups: speed-ups by job, nodes and devices, ``(jobs, nodes + 1, devices + 1)``.
        sizes: the largest size of each job up to a number of devices, 0 for none.
        current: the current genome.
        factors: factors on a job's speed-up if its row differs from the current one.
        pinned: jobs whose rows must not change.
        power: exponent of the mean over jobs; lower values give more equal results.
        weight: weight of every speed-up before a small constant is added.
        at_once: entries of genomes in one step, to bound the intermediate arrays.
    """

    capacity: Genomes
    speedups: Floats
    sizes: Genomes
    current: Genomes
    factors: Floats
    pinned: Bools
    power: float
    weight: float
    at_once: int = 1 << 20

    def fitness(self, genomes: Genomes) -> Floats:
        """Compute the power mean of the jobs' speed-ups, by genome."""
        return np.concatenate([self._fitness(genomes[part]) for part in self._parts(genomes)])

    def _fitness(self, genomes: Genomes) -> Floats:
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
        """Return valid genomes near the given ones.

        Each node has at most one job that uses several nodes. Sizes are allowed, and nodes are not
        exceeded; a random choice decides whether the first or the last jobs come first. Pinned
        rows do not change.
        """
        turns = rng.random(genomes.shape[:2])
        backwards = np.arange(len(genomes)) >= len(genomes) // 2
        free = self.capacity - (self.current * self.pinned[:, None]).sum(axis=0)
        legal = np.minimum(genomes, self.capacity)
        for part in self._parts(legal):
            some = legal[part]
            _part_spread(some, turns[part])
            self._size(some)
            some[:, self.pinned] = 0
            _clip(some, free, backwards[part])
            self._size(some)
            some[:, self.pinned] = self.current[self.pinned]
        return legal

    def _size(self, genomes: Genomes) -> None:
        """Cut every row down to an allowed size, the last nodes first."""
        devices = genomes.sum(axis=2)
        allowed = self.sizes[np.arange(genomes.shape[1]), devices]
        wrong = allowed != devices
        genomes[wrong] = _kept(genomes[wrong], allowed[wrong])

    def _parts(self, genomes: Genomes) -> Iterator[slice]:
        step = max(1, self.at_once // max(1, self.current.size))
        return (slice(begin, begin + step) for begin in range(0, len(genomes), step))


def search(
    problem: GeneticProblem,
    start: Genomes,
    *,
    population: int,
    generations: int,
    rng: np.random.Generator,
) -> Genomes:
    """Return the last population, the fittest first, including the best ever seen.

    Args:
        problem: the problem to solve.
        start: initial genomes, at least one; they are repaired first.
        population: genomes of each generation.
        generations: maximum number; the search also ends after 20 without improvement.
        rng: the only source of randomness.
    """
    copies = start[np.arange(population) % len(start)]
    _mutate(problem, copies[len(start) :], rng)
    genomes = problem.repaired(copies, rng)
    del copies
    genomes[0] = problem.current
    values = problem.fitness(genomes)
    best, since = float(values.max()), 0
    for _ in range(generations):
        children = _crossed(genomes, values, rng)
        _mutate(problem, children, rng)
        children = problem.repaired(children, rng)
        genomes, values = _fittest(genomes, values, children, problem.fitness(children))
        since = 0 if values[0] > best else since + 1
        best = float(values[0])
        if since >= _PATIENCE:
            break
    return genomes[np.argsort(-values, kind="stable")]


def _fittest(
    genomes: Genomes, values: Floats, children: Genomes, theirs: Floats
) -> tuple[Genomes, Floats]:
    """Select the best of two generations; of equal fitness only one, if others are left."""
    both = np.concatenate([values, theirs])
    order = np.argsort(-both, kind="stable")
    ranked = both[order]
    fresh = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    count = len(genomes)
    chosen = np.concatenate([order[fresh], order[~fresh]])[:count]
    fittest = np.empty_like(genomes)
    is_child = chosen >= count
    fittest[~is_child] = genomes[chosen[~is_child]]
    fittest[is_child] = children[chosen[is_child] - count]
    return fittest, both[chosen]


def _crossed(genomes: Genomes, values: Floats, rng: np.random.Generator) -> Genomes:
    """Cross parents that each won a duel: some rows of one, the rest of the other."""
    count, jobs = genomes.shape[:2]
    duels = rng.integers(count, size=(2, 2, count))
    parents = np.where(values[duels[0]] >= values[duels[1]], duels[0], duels[1])
    cut = rng.integers(jobs + 1, size=count)
    children = np.empty_like(genomes)
    for child, (one, other, rows) in enumerate(zip(*parents, cut, strict=True)):
        children[child, :rows] = genomes[one, :rows]
        children[child, rows:] = genomes[other, rows:]
    return children


def _mutate(problem: GeneticProblem, genomes: Genomes, rng: np.random.Generator) -> None:
    """Mutate: reset some rows to the current ones, remove some devices, resize some jobs."""
    count, jobs, nodes = genomes.shape
    index, job = np.nonzero(rng.random((count, jobs)) < _RESET)
    genomes[index, job] = problem.current[job]
    for thinned in np.flatnonzero(rng.random(count) < _THIN):
        genomes[thinned] *= rng.random((jobs, nodes)) >= _ZERO
    for _ in range(2):
        _resize(problem, genomes, rng)


def _resize(problem: GeneticProblem, genomes: Genomes, rng: np.random.Generator) -> None:
    """Resize one job of each genome, on free devices or, by chance, on occupied ones."""
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
    # A job that is too large for all nodes together has no size, and gets no devices.
    largest = np.maximum(problem.sizes[job].max(axis=1), 1)
    wanted = problem.sizes[job, rng.integers(1, largest + 1, size=count, dtype=np.int16)]
    order = np.argsort(rng.random((count, nodes)) - free * packed)
    filled = np.minimum(np.take_along_axis(room, order, axis=1).cumsum(axis=1), wanted[:, None])
    row = np.zeros((count, nodes), dtype=np.int16)
    np.put_along_axis(row, order, np.diff(filled, axis=1, prepend=0).astype(np.int16), axis=1)
    # Other jobs lose devices that a greedy job takes.
    over = greedy & (row > free)
    index, node = np.nonzero(over)
    genomes[index, :, node] = 0
    genomes[every, job] = row


def _part_spread(genomes: Genomes, turns: Floats) -> None:
    """Leave only the multi-node job with the latest turn on each node."""
    index, job = np.nonzero(np.count_nonzero(genomes, axis=2) > 1)
    if not len(index):
        return
    rows = genomes[index, job]
    turn = np.where(rows > 0, turns[index, job][:, None], 0.0)
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    latest = np.maximum.reduceat(turn, starts)
    rows[turn < np.repeat(latest, np.diff(starts, append=len(index)), axis=0)] = 0
    genomes[index, job] = rows


def _clip(genomes: Genomes, free: Genomes, backwards: Bools) -> None:
    """Limit each node to its free devices, the first jobs first; ``backwards``: the last."""
    index, node = np.nonzero(genomes.sum(axis=1) > free)
    columns, turned = genomes[index, :, node], backwards[index]
    columns[turned] = columns[turned, ::-1]
    columns = _kept(columns, free[node])
    columns[turned] = columns[turned, ::-1]
    genomes[index, :, node] = columns


def _kept(lines: Genomes, most: NDArray[np.integer[Any]]) -> Genomes:
    """Limit each line to a number of devices, its first entries first."""
    kept = np.minimum(lines.cumsum(axis=1, dtype=np.int32), most[:, None])
    cut: Genomes = np.diff(kept, axis=1, prepend=0).astype(np.int16)
    return cut
