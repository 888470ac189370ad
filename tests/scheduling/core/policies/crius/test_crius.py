"""Crius: search for room, upgrades, opportunistic starts and deadlines, also by brute force."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.performance.live import LiveModel
from scheduling.core.policies import make_policy
from scheduling.core.policies.crius.moves import Assignment
from scheduling.core.policies.crius.options import JobOptions, Slot
from scheduling.core.policies.crius.search import RoomSearch
from scheduling.core.policies.plans import check_plan
from scheduling.core.policy_interface import Alloc, BestGrid, JobPhase, Kind, Part, Scale, Step
from tests.strategies.policy_views import NOW, applied, make_job, make_view

KINDS = ("a", "b")
SIZES = (1, 2, 4)
SCALE = Scale(minimum=1, maximum=4, step=Step.POWER_OF_TWO)


def hybrid(job_id, gang, rates, *, held=None, types=(), since=NOW - 3600.0, **rest):
    """Return a job with the rate of each (type, devices); ``held`` makes it run."""
    alloc = None if held is None else Alloc(parts=(Part(n=held[1], type=held[0]),))
    phase = JobPhase.QUEUED if held is None else JobPhase.RUNNING
    job = make_job(
        job_id,
        gang,
        types=types,
        phase=phase,
        alloc=alloc,
        kind=Kind.ELASTIC,
        scale=SCALE,
        since=since,
        **rest,
    )
    rows = [BestGrid(type=k, devices=n, rate=r) for (k, n), r in sorted(rates.items())]
    return replace(job, grids=tuple(rows))


def planned(jobs, capacity, state=None, **args):
    view = make_view(jobs, capacity, model=LiveModel(jobs, {}))
    plan, after = make_policy("crius", args).plan(view, state or {})
    check_plan(view, plan)
    return {job_id: alloc.sizes[0] for job_id, alloc in plan.allocs.items()}, plan, after


@st.composite
def options(draw, job_id, *, held):
    """Return the options of a job with few values, so that ties happen."""
    values = {
        Slot(kind, n): draw(st.sampled_from([0.25, 0.5, 1.0, 2.0]))
        for kind in KINDS
        for n in SIZES
        if draw(st.booleans())
    }
    here = Slot(draw(st.sampled_from(KINDS)), draw(st.sampled_from(SIZES)))
    values.setdefault(here, 1.0)
    asked = tuple(sorted(slot for slot in values if slot.devices == here.devices))
    job = make_job(job_id, here.devices)
    return JobOptions(job=job, values=values, asked=asked, held=here if held else None)


@st.composite
def searches(draw):
    running = [
        draw(options(job_id, held=True)) for job_id in range(1, draw(st.integers(1, 4)) + 1)
    ]
    new = draw(options(9, held=False))
    spare = {kind: draw(st.integers(0, 1)) for kind in KINDS}
    return running, new, spare, draw(st.integers(0, 3))


def books_of(running, spare):
    used = {kind: sum(o.held.devices for o in running if o.held.type == kind) for kind in KINDS}
    books = Assignment({kind: used[kind] + spare[kind] for kind in KINDS})
    for one in running:
        books.place(one, one.held)
    return books


def children(slots, request, free):
    """Yield the pairs of sizes of each kind of change."""
    for kind in KINDS:
        sizes = {slot.devices for slot in [*slots.values(), request] if slot.type == kind}
        large = [n for n in sizes if n > 1 and 2 * n >= max(sizes)]
        yield [(Slot(kind, n), Slot(kind, n // 2)) for n in large]
        (other,) = (k for k in KINDS if k != kind)
        yield [(Slot(kind, n), Slot(other, n)) for n in sizes if free[other] >= n]


def brute_force(running, new, spare, depth):
    """Return the best total of all sequences of changes, by passes over all jobs."""
    values = {one.job.id: one.values for one in [*running, new]}
    capacity = dict(books_of(running, spare).free)
    for one in running:
        capacity[one.held.type] += one.held.devices

    def left(slots):
        return {
            kind: n - sum(slot.devices for slot in slots.values() if slot.type == kind)
            for kind, n in capacity.items()
        }

    def after(slots, request, pairs):
        """Return the state after the change that loses least, if there is one."""
        every = {**slots, new.job.id: request}
        losses = [
            (values[job_id][slot] - values[job_id][target], job_id, target)
            for job_id, slot in every.items()
            for before, target in pairs
            if slot == before and target in values[job_id]
        ]
        if not losses:
            return []
        _loss, job_id, target = min(losses, key=lambda loss: loss[:2])
        every[job_id] = target
        wanted = every.pop(new.job.id)
        return [(every, wanted)]

    totals, level = [], [({one.job.id: one.held for one in running}, s) for s in new.asked]
    for _level in range(depth + 1):
        fitting = [s for s in level if left(s[0])[s[1].type] >= s[1].devices]
        for slots, request in fitting:
            every = {**slots, new.job.id: request}
            totals.append(sum(values[job_id][slot] for job_id, slot in every.items()))
        level = [
            child
            for slots, request in level
            if (slots, request) not in fitting
            for pairs in children(slots, request, left(slots))
            for child in after(slots, request, pairs)
        ]
    return max(totals, default=None)


@settings(max_examples=150, deadline=None)
@given(case=searches())
def test_the_search_finds_the_best_room_of_all_sequences(case):
    running, new, spare, depth = case

    found = RoomSearch(depth=depth, beam=10_000).outcome(books_of(running, spare), new)

    best = brute_force(running, new, spare, depth)
    assert (found is None) == (best is None)
    if found is not None:
        before = sum(one.values[one.held] for one in running)
        assert before + found.gain == pytest.approx(best)
        assert len(found.changes) <= depth


@settings(max_examples=60, deadline=None)
@given(case=searches())
def test_the_best_changes_equal_a_pass_over_all_jobs(case):
    running, _new, spare, _depth = case
    books = books_of(running, spare)

    found = max(books.upgrades(), default=None, key=lambda one: (one[0], -one[1]))

    every = [
        one.values[target] - one.values[one.held]
        for one in running
        for target in one.values
        if target.devices == one.held.devices * (2 if target.type == one.held.type else 1)
        and books.free[target.type] >= (target.devices - one.held.devices or target.devices)
    ]
    assert (found[0] if found else None) == max(every, default=None)
    assert books.total == pytest.approx(sum(one.values[one.held] for one in running))


@st.composite
def clusters(draw):
    """Return jobs that run or wait, and the devices; what runs fits."""
    jobs, used = [], dict.fromkeys(KINDS, 0)
    for job_id in range(1, draw(st.integers(1, 6)) + 1):
        one = draw(options(job_id, held=draw(st.booleans())))
        jobs.append(
            hybrid(
                job_id,
                one.asked[0].devices,
                one.values,
                held=one.held,
                submitted=NOW - draw(st.sampled_from([100.0, 900.0])),
                types=draw(st.sampled_from([(), KINDS])),
            )
        )
        if one.held:
            used[one.held.type] += one.held.devices
    return jobs, {kind: used[kind] + draw(st.integers(0, 4)) for kind in KINDS}


@settings(max_examples=80, deadline=None)
@given(case=clusters(), depth=st.integers(0, 3), opportunistic=st.booleans())
def test_plans_are_legal_and_deterministic(case, depth, opportunistic):
    jobs, capacity = case

    one = planned(jobs, capacity, depth=depth, opportunistic=opportunistic)
    again = planned(jobs[::-1], capacity, depth=depth, opportunistic=opportunistic)

    used = dict.fromkeys(KINDS, 0)
    for n, kind in one[0].values():
        used[kind] += n
    assert all(used[kind] <= capacity[kind] for kind in KINDS)
    assert (one[0], one[2]) == (again[0], again[2])


@settings(max_examples=80, deadline=None)
@given(case=clusters())
def test_without_a_search_no_plan_is_worse_than_its_start(case):
    jobs, capacity = case
    model = LiveModel(jobs, {})

    def total(sizes):
        by_id = {job.id: job for job in jobs}
        found = 0.0
        for job_id, (n, kind) in sizes.items():
            rates = {(r.type, r.devices): r.rate for r in by_id[job_id].grids}
            unit = max(r for (_k, size), r in rates.items() if size == by_id[job_id].gang)
            found += rates[kind, n] / unit
        return found

    before = {job.id: job.alloc.sizes[0] for job in jobs if job.alloc is not None}
    sizes, _plan, _state = planned(jobs, capacity, depth=0, opportunistic=False)

    assert model.rate is not None
    assert total(sizes) >= total(before) - 1e-9
    assert sizes.keys() >= before.keys()


def test_a_job_is_halved_for_one_that_does_not_fit():
    big = hybrid(1, 4, {("a", 4): 1.0, ("a", 2): 0.8}, held=("a", 4))
    new = hybrid(2, 2, {("a", 2): 1.0})

    assert planned([big, new], {"a": 4})[0] == {1: (2, "a"), 2: (2, "a")}
    assert planned([big, new], {"a": 4}, depth=0)[0] == {1: (4, "a")}
    assert planned([big, new], {"a": 4}, scaling=False)[0] == {1: (4, "a")}


def test_a_job_moves_to_another_type_for_one_that_cannot():
    able = hybrid(1, 2, {("a", 2): 1.0, ("b", 2): 0.9}, held=("a", 2))
    new = hybrid(2, 2, {("a", 2): 1.0})

    assert planned([able, new], {"a": 2, "b": 2})[0] == {1: (2, "b"), 2: (2, "a")}
    assert planned([able, new], {"a": 2, "b": 2}, exchange=False)[0] == {1: (2, "a")}


def test_an_upgrade_must_pay_for_its_restart():
    job = hybrid(1, 1, {("a", 1): 1.0, ("b", 1): 1.005}, held=("a", 1))

    assert planned([job], {"a": 1, "b": 1})[0] == {1: (1, "a")}
    assert planned([job], {"a": 1, "b": 1}, restart=False)[0] == {1: (1, "b")}


def test_a_young_job_is_not_changed():
    job = hybrid(1, 1, {("a", 1): 1.0, ("b", 1): 3.0}, held=("a", 1), since=NOW - 350.0)

    assert planned([job], {"a": 1, "b": 1})[0] == {1: (1, "b")}
    assert planned([job], {"a": 1, "b": 1}, settle=400.0)[0] == {1: (1, "a")}
    # Live rounds ignore changes within 10 restarts of 30 s.
    young = replace(job, since=NOW - 299.0)
    assert planned([young], {"a": 1, "b": 1}, settle=0.0)[0] == {1: (1, "a")}


def test_a_waiting_job_takes_back_devices_of_later_jobs():
    old = hybrid(1, 4, {("a", 4): 1.0}, submitted=NOW - 5000.0)
    late = hybrid(2, 2, {("a", 2): 1.0}, held=("a", 2), submitted=NOW - 4000.0)

    assert planned([old, late], {"a": 4})[0] == {1: (4, "a")}
    assert planned([old, late], {"a": 4}, opportunistic=False)[0] == {2: (2, "a")}


def test_without_opportunism_a_waiting_job_blocks_its_type():
    first = hybrid(1, 4, {("a", 4): 1.0}, submitted=NOW - 5000.0)
    second = hybrid(2, 1, {("a", 1): 1.0}, submitted=NOW - 4000.0)
    young = hybrid(3, 2, {("a", 2): 1.0}, held=("a", 2), since=NOW - 10.0)
    jobs = [first, second, young]

    assert planned(jobs, {"a": 4}, opportunistic=False)[0] == {3: (2, "a")}
    assert planned(jobs, {"a": 4})[0] == {2: (1, "a"), 3: (2, "a")}


def test_a_job_that_leaves_for_a_size_returns_to_it():
    job = hybrid(1, 1, {("a", 1): 1.0, ("b", 4): 9.0, ("b", 1): 1.1}, held=("a", 1), types=KINDS)
    view = make_view([job], {"a": 4, "b": 4}, model=LiveModel([job], {}))
    policy = make_policy("crius", {"upgrades": 1})
    plan, state = policy.plan(view, {})
    assert plan.allocs[1].sizes == ((1, "b"),)

    waiting = replace(job, phase=JobPhase.QUEUED, alloc=None)
    plan, state = policy.plan(replace(view, jobs=(waiting,)), state)
    assert plan.allocs[1].sizes == ((1, "b"),)

    running = applied(replace(view, jobs=(waiting,)), plan)
    assert policy.plan(running, state)[1] == {"targets": {}}


def test_devices_of_a_leaving_job_s_target_are_reserved():
    leaving = replace(
        hybrid(1, 1, {("a", 1): 1.0, ("b", 1): 2.0}, held=("a", 1)), phase=JobPhase.LEAVING
    )
    new = hybrid(2, 1, {("b", 1): 1.0})
    state = {"targets": {"1": ["b", 1]}}

    sizes, _plan, after = planned([leaving, new], {"a": 1, "b": 1}, state)

    assert sizes == {}
    assert after == state


def test_sizes_that_miss_the_deadline_are_excluded_and_late_jobs_refused():
    facts = {"steps_left": 1000.0}
    due = hybrid(1, 1, {("a", 1): 1.0, ("a", 2): 2.0}, deadline=NOW + 900.0, facts=facts)
    late = hybrid(2, 1, {("a", 1): 1.0}, deadline=NOW - 1.0, facts=facts)

    sizes, plan, _state = planned([due, late], {"a": 4}, deadline=True)

    assert sizes == {1: (2, "a")}
    assert set(plan.reject) == {2}


def test_a_job_without_a_grid_at_its_requested_size_starts_at_a_smaller_one():
    job = hybrid(1, 4, {("a", 2): 1.0})

    assert planned([job], {"a": 4})[0] == {1: (2, "a")}
