"""Searches of the rules ``crius``: merges of nodes, downgrades and upgrades."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproductions.crius.devices import IDLE, Span, Table
from benchmarks.reproductions.crius.downgrading import Downgrades
from benchmarks.reproductions.crius.jobs import INFEASIBLE, Request
from benchmarks.reproductions.crius.moving import (
    ALL_PASSES,
    MOST_PASSES,
    Mover,
    merged_pair,
    openings,
)
from benchmarks.reproductions.crius.upgrading import Upgrades
from tests.benchmarks.reproductions.crius.toys import SLOW_MODEL, job, judge, layout, request

A100, V100, A40 = (0, 1), (2,), (3, 4, 5, 6)


def occupied(*holdings):
    """A table with jobs: (index, devices, nodes) each."""
    table = Table(layout())
    for index, devices, nodes in holdings:
        assert table.place(index, devices, nodes)
    return table


def test_partly_used_nodes_end_where_they_have_room_together():
    table = occupied((1, 1, [3]), (2, 1, [4]), (3, 1, [5]))

    assert openings(table, "a40", 2) == ([3, 4], [6])
    assert openings(table, "a40", 8) == ([3, 4, 5], [6])


def test_a_job_starts_on_an_idle_node_before_a_partly_used_one():
    table = occupied((1, 1, [0]))

    placed = Mover(judge()).search(request(job(2, devices=2)), table, ALL_PASSES)

    assert (placed.found, placed.relaxed, placed.passes) == (True, False, ALL_PASSES)
    assert placed.table.nodes(2) == [1]
    assert placed.gain == judge().gain(request(job(2, devices=2)), Span("a100", 1, 2))


def test_two_nodes_are_merged_for_a_job_that_needs_a_complete_one():
    table = occupied((1, 1, [0]), (2, 1, [1]))

    placed = Mover(judge()).search(request(job(3, devices=4)), table, ALL_PASSES)

    assert (placed.found, placed.relaxed, placed.passes) == (True, False, ALL_PASSES - 1)
    assert placed.table.nodes(3) == [0]
    assert placed.table.nodes(1) == placed.table.nodes(2) == [1]


def test_one_node_is_filled_if_none_becomes_idle():
    table = occupied((1, 2, [0]), (2, 1, [0]), (3, 2, [1]))

    merged = merged_pair(table, (1, 2), (0, 1))

    assert merged is table
    assert sorted((table.free(0), table.free(1))) == [0, 3]


def test_a_refused_merge_returns_a_copy_and_leaves_the_given_table_half_done():
    # Job 2 spans three nodes: merging two of them would leave it uneven.
    table = occupied((2, 4, [3, 4, 5, 6]))
    before = table.copy()

    merged = merged_pair(table, (3, 1), (4, 1))

    assert merged is not table
    assert merged.owner == before.owner
    assert table.owner != before.owner


def test_without_a_merge_the_locality_is_relaxed():
    # Job 1 has one device on each of the four nodes, so that no two of them can be merged.
    table = occupied((1, 4, [3, 4, 5, 6]))

    placed = Mover(judge()).search(request(job(5, "a40", 2)), table, ALL_PASSES)

    assert (placed.found, placed.relaxed) == (True, True)
    assert placed.table.span(5) == Span("a40", 2, 1)
    assert placed.passes == ALL_PASSES - MOST_PASSES


SHAPES = st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (4, 4), (8, 4)])


@st.composite
def tables(draw):
    """A table with jobs on even shapes, and its jobs."""
    table, jobs = Table(layout()), []
    for index, (devices, count) in enumerate(draw(st.lists(SHAPES, max_size=8))):
        group = draw(st.sampled_from([A100, V100, A40]))
        nodes = draw(st.permutations(group))[:count]
        if len(nodes) == count and table.place(index, devices, sorted(nodes)):
            kind = layout().kinds[nodes[0]]
            one = job(index, kind, 1, model=draw(st.sampled_from(["bert__760M", SLOW_MODEL])))
            one.shape = table.span(index)
            one.running = True
            jobs.append(one)
    return table, jobs


def assert_sound(table, jobs):
    """Every device has at most one job; every job is on one type, evenly, and not too large."""
    seen = [code for code in table.owner if code != IDLE]
    assert len(seen) == sum(table.count(one.index) for one in jobs)
    for one in jobs:
        nodes, span = table.nodes(one.index), table.span(one.index)
        assert table.is_even(one.index)
        assert len({table.layout.kinds[node] for node in nodes}) == 1
        assert span.devices in {1, 2, 4, 8, 16}


@given(tables(), st.sampled_from(["a100", "v100", "a40"]), st.sampled_from([1, 2, 4, 8]))
def test_a_placement_moves_jobs_without_changing_their_sizes(drawn, kind, devices):
    table, jobs = drawn
    sizes = {one.index: table.count(one.index) for one in jobs}
    new = job(99, kind, devices)

    placed = Mover(judge()).search(request(new), table.copy(), ALL_PASSES)

    everybody = [*jobs, new] if placed.found else jobs
    assert_sound(placed.table, everybody)
    assert {one.index: placed.table.count(one.index) for one in jobs} == sizes
    if placed.found:
        assert placed.table.count(99) == devices
        assert placed.relaxed == (placed.table.span(99) != layout().best(kind, devices))


@given(tables(), st.sampled_from(["a100", "v100", "a40"]), st.sampled_from([1, 2, 4]))
def test_a_downgrade_is_worth_its_gain(drawn, kind, devices):
    table, jobs = drawn
    new, judged = job(99, kind, devices), judge()
    known = {one.index: one for one in [*jobs, new]}
    search = Downgrades(judge=judged, mover=Mover(judged), jobs=known.__getitem__)
    before = table.owner[:]

    outcomes = search.outcomes(request(new), table, ALL_PASSES, 2)

    assert table.owner == before
    for outcome in outcomes:
        if all(outcome.table.is_even(one.index) for one in jobs):
            assert outcome.table.count(99) in {1, 2, 4}
            for one in jobs:
                assert outcome.table.count(one.index) <= table.count(one.index)


def test_the_job_that_loses_least_is_halved():
    fast, slow = job(0, devices=4), job(1, devices=4, model=SLOW_MODEL)
    table = occupied((0, 4, [0]), (1, 4, [1]))
    judged = judge()
    known = {0: fast, 1: slow, 2: job(2, devices=2)}
    search = Downgrades(judge=judged, mover=Mover(judged), jobs=known.__getitem__, types=False)

    outcomes = search.outcomes(request(known[2]), table, ALL_PASSES, 1)

    best = max(outcomes, key=lambda outcome: outcome.gain)
    assert (best.table.count(0), best.table.count(1), best.table.count(2)) == (4, 2, 2)


def test_a_new_job_moves_to_another_type_if_its_own_is_full():
    table = occupied((0, 4, [0]), (1, 4, [1]))
    judged = judge()
    known = {0: job(0, devices=4), 1: job(1, devices=4), 2: job(2, devices=4)}
    search = Downgrades(judge=judged, mover=Mover(judged), jobs=known.__getitem__, scaling=False)

    outcomes = search.outcomes(request(known[2]), table, ALL_PASSES, 1)

    assert [outcome.table.span(2) for outcome in outcomes] == [Span("v100", 1, 4)]


def brute_force(jobs, table, judged):
    """The best single upgrade, of all options tried in order."""
    best = None
    for one in jobs:
        shape = one.shape
        wanted = [
            Request(one, kind, shape.devices)
            for kind in layout().search
            if kind != shape.type and table.free_of(kind) >= shape.devices
        ]
        if shape.devices < 16 and table.free_of(shape.type) >= shape.devices:
            wanted.append(Request(one, shape.type, 2 * shape.devices))
        for option in wanted:
            trial = table.copy()
            trial.clear(one.index)
            placed = Mover(judged).search(option, trial, ALL_PASSES)
            gain = INFEASIBLE
            if placed.found:
                gain = judged.gain(option, placed.table.span(one.index), shape)
            if gain > (0.0 if best is None else best.gain):
                best = placed._replace(gain=gain)
    return best


def test_an_upgrade_counts_the_locality_that_it_really_gets():
    # On complete nodes, job 1 would gain 12.8 samples/s, but it has to be spread (9.92); job 2
    # gains 10.08.
    table = occupied((0, 4, [3, 4, 5, 6]), (1, 1, [3]), (2, 2, [0]))
    jobs = [job(0, "a40", 4), job(1, "a40", 1), job(2, "a100", 2, model=SLOW_MODEL)]
    judged = judge({"a100": 28.0, "v100": 24.0, "a40": 16.0})
    for one in jobs:
        one.shape = table.span(one.index)

    upgrades = Upgrades(judge=judged, mover=Mover(judged), types=False)
    placed = upgrades.best(jobs, table, ALL_PASSES)

    assert placed is not None
    assert placed.table.span(2) == Span("a100", 1, 4)
    assert placed.table.span(1) == Span("a40", 1, 1)


@given(tables())
def test_the_best_upgrade_is_that_of_all_options_tried_in_order(drawn):
    table, jobs = drawn
    judged = judge()

    found = Upgrades(judge=judged, mover=Mover(judged)).best(jobs, table, ALL_PASSES)

    expected = brute_force(jobs, table, judged)
    assert (found is None) == (expected is None)
    if found is not None:
        assert found.gain == expected.gain > 0.0
        assert found.table.owner == expected.table.owner
        assert_sound(found.table, jobs)
