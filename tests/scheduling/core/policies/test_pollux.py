"""Pollux: the search against all matrices there are, and what it is asked to search."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies.engines.genetic import GeneticProblem, search
from scheduling.core.policies.pollux import Pollux
from scheduling.core.policy_interface import Alloc, JobPhase, LinearModel, Part, Scale
from tests.strategies.policy_views import NOW, make_job, make_view


class Goodputs(LinearModel):
    """Goodput by devices on one node; each further node costs a tenth."""

    def __init__(self, table, most=4, seen=None):
        super().__init__()
        self.table, self.most = table, most
        self.seen = most if seen is None else seen

    def goodputs(self, jobs, shapes, *, within_request=False):
        return np.array(
            [
                [self.table[job.id][s.devices] * 0.9 ** (s.nodes - 1) for s in shapes]
                for job in jobs
            ]
        )

    def profiled(self, job):
        return {"a": self.seen}

    def most_devices(self, job, device_type):
        return self.most


def elastic(job_id, most=4, **rest):
    return make_job(job_id, scale=Scale(minimum=1, maximum=most), **rest)


def plan_of(jobs, table, devices=4, policy=None, most=4):
    view = make_view(jobs, {"a": devices}, model=Goodputs(table, most))
    return (policy or Pollux()).plan(view, {})[0]


def problem_of(speedups, capacity, *, power=-1.0, current=None, factor=1.0, pinned=()):
    jobs, _, most = speedups.shape
    matrix = np.zeros((jobs, len(capacity))) if current is None else current
    return GeneticProblem(
        capacity=np.array(capacity, dtype=np.int16),
        speedups=speedups,
        sizes=np.tile(np.arange(most, dtype=np.int16), (jobs, 1)),
        current=np.array(matrix, dtype=np.int16),
        factors=np.full(jobs, factor),
        pinned=np.array([index in pinned for index in range(jobs)]),
        power=power,
        weight=0.5,
    )


def worth(plan, table):
    devices = {job: plan.allocs[job].devices if job in plan.allocs else 0 for job in table}
    return sum(table[job][n] for job, n in devices.items())


def plainly_repaired(problem, genomes, rng):
    """The same entry by entry, as it is described."""
    turns = rng.random(genomes.shape[:2])
    half = len(genomes) // 2
    return [
        plainly_legal(problem, np.minimum(genome, problem.capacity), turns[n], n >= half)
        for n, genome in enumerate(genomes)
    ]


def plainly_legal(problem, genome, turns, backwards):
    jobs = range(len(genome))
    spread = {job for job in jobs if np.count_nonzero(genome[job]) > 1}
    for column in genome.T:
        there = [job for job in sorted(spread) if column[job] > 0]
        for job in there:
            column[job] *= turns[job] == max(turns[there])
    plainly_cut(problem, genome)
    genome[problem.pinned] = 0
    for node, column in enumerate(genome.T):
        left = problem.capacity[node] - problem.current[problem.pinned, node].sum()
        for job in reversed(jobs) if backwards else jobs:
            column[job] = min(column[job], left)
            left -= column[job]
    plainly_cut(problem, genome)
    genome[problem.pinned] = problem.current[problem.pinned]
    return genome


def plainly_cut(problem, genome):
    for job, row in enumerate(genome):
        left = problem.sizes[job, row.sum()]
        for node, devices in enumerate(row):
            row[node] = min(devices, left)
            left -= row[node]


def legal_matrices(jobs, capacity):
    columns = [
        [c for c in itertools.product(range(n + 1), repeat=jobs) if sum(c) <= n] for n in capacity
    ]
    for chosen in itertools.product(*columns):
        matrix = np.array(chosen, dtype=np.int16).T
        spread = (matrix > 0) & ((matrix > 0).sum(axis=1) > 1)[:, None]
        if (spread.sum(axis=0) <= 1).all():
            yield matrix


@settings(max_examples=15, deadline=None)
@given(data=st.data(), power=st.sampled_from([-1.0, 0.0, 1.0]), factor=st.sampled_from([0.5, 1.0]))
def test_the_search_finds_the_best_of_all_legal_matrices(data, power, factor):
    worth = data.draw(st.lists(st.integers(0, 9), min_size=18, max_size=18))
    speedups = np.zeros((2, 3, 5))
    speedups[:, 1:, :] = np.array([*worth, 0, 0], dtype=np.float64).reshape(2, 2, 5)
    speedups[:, :, 0] = 0.0
    problem = problem_of(
        speedups, [2, 2], power=power, current=np.array([[1, 0], [0, 1]]), factor=factor
    )

    found = search(
        problem,
        problem.current[None],
        population=40,
        generations=60,
        rng=np.random.default_rng(0),
    )

    every = np.stack(list(legal_matrices(2, [2, 2])))
    assert problem.fitness(found[:1])[0] == pytest.approx(problem.fitness(every).max())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_genome_that_is_repaired_is_legal(seed):
    rng = np.random.default_rng(seed)
    current = np.zeros((4, 3), dtype=np.int16)
    current[0, 0] = 2
    problem = problem_of(np.ones((4, 4, 10)), [4, 4, 1], current=current, pinned=(0,))
    problem.sizes[1] = [0, 0, 2, 2, 4, 4, 4, 4, 4, 4]

    genomes = problem.repaired(rng.integers(0, 5, (30, 4, 3)).astype(np.int16), rng)

    assert (genomes >= 0).all()
    assert (genomes.sum(axis=1) <= problem.capacity).all()
    assert (genomes[:, 0] == current[0]).all()
    assert np.isin(genomes[:, 1].sum(axis=1), [0, 2, 4]).all()
    nodes = (genomes > 0).sum(axis=2)
    assert (((genomes > 0) & (nodes > 1)[:, :, None]).sum(axis=1) <= 1).all()


def test_jobs_that_scale_get_more_and_nobody_goes_without():
    table = {1: [0.0, 1.0, 1.9, 2.7, 3.5], 2: [0.0, 1.0, 1.0, 1.0, 1.0]}

    plan = plan_of([elastic(1), elastic(2)], table)

    assert {job: alloc.devices for job, alloc in plan.allocs.items()} == {1: 3, 2: 1}


def test_what_was_never_seen_begins_with_one_device():
    plan = plan_of([elastic(1)], {1: [np.nan] * 5}, policy=Pollux(), most=0)

    assert plan.allocs[1].devices == 1


def test_nobody_grows_to_more_than_twice_what_it_was_seen_on():
    table = {1: [float(n) for n in range(9)]}

    assert plan_of([elastic(1, most=8)], table, devices=8, most=2).allocs[1].devices == 2
    view = make_view([elastic(1, most=8)], {"a": 8}, model=Goodputs(table, 8, seen=2))
    assert Pollux().plan(view, {})[0].allocs[1].devices == 4


@pytest.mark.parametrize(("age", "devices"), [(40.0, 1), (1e6, 2)])
def test_a_young_job_does_not_restart_for_little_and_an_old_one_does(age, devices):
    held = Alloc(parts=(Part(n=1, type="a"),), layout=(1, 0))
    job = elastic(1, most=2, phase=JobPhase.RUNNING, alloc=held, submitted=NOW - age)

    plan = plan_of([job], {1: [0.0, 1.0, 1.5, 1.5, 1.5]})

    assert plan.allocs[1].devices == devices


def test_a_job_that_holds_more_than_it_may_have_is_no_fault():
    held = Alloc(parts=(Part(n=8, type="a"),), layout=(2, 2, 2, 2))
    job = elastic(1, most=8, phase=JobPhase.RUNNING, alloc=held, submitted=NOW - 1e6)
    table = {1: [float(n) for n in range(9)]}

    plan = plan_of([job], table, devices=8, policy=Pollux(most_devices=4), most=8)

    assert plan.allocs[1].devices == 8


def test_the_best_matrices_of_a_round_are_where_the_next_one_begins():
    jobs = [elastic(1), elastic(2), elastic(3)]
    table = {n: [0.0, 1.0, 1.7, 2.2, 2.5] for n in (1, 2, 3)}
    view = make_view(jobs, {"a": 5}, model=Goodputs(table))
    found, state = Pollux().plan(view, {})

    # A few matrices and one generation find nothing as good by themselves.
    short = Pollux(population=4, generations=1)
    assert worth(short.plan(view, {})[0], table) < worth(found, table)
    again, _ = short.plan(view, json.loads(json.dumps(state)))
    assert worth(again, table) >= worth(found, table)


def test_what_other_nodes_or_another_version_remember_is_left_out():
    table = {1: [0.0, 1.0, 1.9, 2.7, 3.5]}
    view = make_view([elastic(1)], {"a": 4}, model=Goodputs(table))

    plain = Pollux().plan(view, {})

    assert Pollux().plan(view, {"a": {"nodes": 7, "rows": {"1": [[6, 2]]}}}) == plain
    assert Pollux().plan(view, {"a": {"1": [[1, 1], [0, 2]]}}) == plain


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), at_once=st.sampled_from([1, 30, 1 << 20]))
def test_genomes_are_repaired_as_described_however_many_at_a_time(seed, at_once):
    current = np.zeros((5, 4), dtype=np.int16)
    current[1] = [0, 1, 2, 0]
    problem = problem_of(np.ones((5, 5, 13)), [4, 3, 4, 1], current=current, pinned=(1,))
    problem = replace(problem, at_once=at_once)
    problem.sizes[2] = [0, 0, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    genomes = np.random.default_rng(seed).integers(0, 5, (12, 5, 4)).astype(np.int16)

    found = problem.repaired(genomes, np.random.default_rng(seed))

    assert (found == plainly_repaired(problem, genomes, np.random.default_rng(seed))).all()


def test_chance_is_the_seed_alone():
    jobs = [elastic(i) for i in range(1, 5)]
    view = make_view(jobs, {"a": 4, "b": 3})

    assert Pollux().plan(view, {}) == Pollux().plan(view, {})
