"""Gandiva: everybody has his turn, and what is measured decides who shares."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduling.core.policies import make_policy
from scheduling.core.policies.gandiva.packing import PackedGang, in_turn, seat
from scheduling.core.policy_interface import JobPhase, Kind, LinearModel, Scale
from tests.strategies.policy_views import TYPES, applied, make_job, make_view

GANGS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([("a",), ("b", "a"), ("b",)])), max_size=8
).map(lambda rows: [PackedGang(key=i, n=n, types=types) for i, (n, types) in enumerate(rows)])


FOUND_WANTING = [
    PackedGang(key=i, n=n, types=tuple(types))
    for i, (n, types) in enumerate(
        [(1, "a"), (1, "a"), (2, "a"), (1, "ba"), (1, "a"), (1, "a"), (1, "ba"), (1, "ba")]
    )
]


@settings(max_examples=100, deadline=None)
@example(gangs=FOUND_WANTING, gone={0, 3}, room=(1, 1))
@given(gangs=GANGS, gone=st.sets(st.integers(0, 7)), room=st.tuples(*[st.integers(0, 4)] * 2))
def test_every_row_holds_whole_gangs_and_none_is_wasted(gangs, gone, room):
    capacity = dict(zip("ab", room, strict=True))
    seats = seat(gangs, capacity, {})
    left = [gang for gang in gangs if gang.key not in gone]

    again = seat(left, capacity, seats)

    for present, places in ((gangs, seats), (left, again)):
        rows = {place.row for place in places.values()}
        assert rows == set(range(len(rows)))
        for row in rows:
            for kind in "ab":
                used = sum(
                    g.n
                    for g in present
                    if g.key in places and (places[g.key].row, places[g.key].type) == (row, kind)
                )
                assert used <= capacity[kind]
        assert set(places) == {
            g.key for g in present if any(capacity[kind] >= g.n for kind in g.types)
        }
    assert seat(left, capacity, again) == again


def test_rows_take_turns_and_others_fill_what_a_row_leaves():
    gangs = [PackedGang(key=i, n=n, types=("a",)) for i, n in ((1, 3), (2, 2), (3, 1))]

    seats = seat(gangs, {"a": 4}, {})

    assert [seats[key].row for key in (1, 2, 3)] == [0, 1, 0]
    assert [gang.key for gang in in_turn(gangs, seats, 1)] == [2, 1, 3]


def run(view, rounds, measure=lambda view: view, **args):
    policy, plans = make_policy("gandiva", args), []
    state: Mapping[str, Any] = {}
    ran: dict[int, int] = {}
    for _ in range(rounds):
        plan, state = policy.plan(measure(view), state)
        plans.append(plan)
        view = applied(view, plan)
        for job in view.jobs:
            ran[job.id] = ran.get(job.id, 0) + (job.phase is JobPhase.RUNNING)
        view = replace(view, now=view.now + 60.0)
    return ran, plans


def test_gangs_that_do_not_fit_together_take_turns():
    view = make_view([make_job(i, 2, types=("a",)) for i in (1, 2, 3)], {"a": 2})

    ran, plans = run(view, 30)

    assert ran == {1: 10, 2: 10, 3: 10}
    assert plans[0].wake == view.now + 60.0


def test_without_load_nobody_is_disturbed():
    view = make_view([make_job(i, 2, types=("a",)) for i in (1, 2)], {"a": 4})

    ran, plans = run(view, 10)

    assert ran == {1: 10, 2: 10}
    assert plans[-1].wake is None


def test_who_may_grow_takes_what_has_been_idle_and_gives_it_back():
    elastic: dict[str, Any] = {"scale": Scale(minimum=1, maximum=8), "kind": Kind.ELASTIC}
    view = make_view([make_job(1, 2, types=("b",), **elastic)], {"b": 4})

    _, plans = run(view, 5)
    busy = replace(view, jobs=(*view.jobs, make_job(2, 2, types=("b",))))
    _, shared = run(busy, 5)

    assert [plan.allocs[1].devices for plan in plans] == [2, 2, 4, 4, 4]
    assert [plan.allocs[1].devices for plan in shared] == [2] * 5


def test_a_job_moves_to_a_type_on_which_it_is_faster():
    model = LinearModel(TYPES)
    slow = make_job(1, 2, types=("a", "b"), phase=JobPhase.RUNNING)
    view = make_view([slow], {"a": 2, "b": 4}, model=model)

    moved, _ = make_policy("gandiva", {}).plan(view, {})
    stays, _ = make_policy("gandiva", {"migrate": 2.5}).plan(view, {})

    assert moved.allocs[1].single.type == "b"
    assert stays.allocs[1].single.type == "a"


class Packable(LinearModel):
    def pair(self, job, other, device_type):
        return (0.7, 0.7)


def packed(paces):
    """Two jobs of one device each; their step times while they share."""

    def measure(view):
        jobs = tuple(
            replace(
                job,
                facts=replace(
                    job.facts,
                    step_time=paces if job.alloc and job.alloc.share else 1.0,
                    util=0.3,
                ),
            )
            for job in view.jobs
        )
        return replace(view, jobs=jobs)

    view = make_view(
        [make_job(i, types=("a",), shareable=True) for i in (1, 2)], {"a": 1}, model=Packable()
    )
    return run(view, 12, measure, packing=True)[1]


def test_jobs_share_a_device_under_load_while_they_make_more_together():
    plans = packed(1.6)

    assert all(set(plan.allocs) == {1, 2} for plan in plans)
    assert plans[0].allocs[1].share.group == plans[0].allocs[2].share.group


def test_a_pack_that_makes_less_than_turns_is_undone_for_good():
    # What each makes alone has to be known before: they begin with turns.
    view = make_view(
        [make_job(i, types=("a",), shareable=True) for i in (1, 2)], {"a": 1}, model=Packable()
    )
    policy = make_policy("gandiva", {"packing": True})
    alone = {"packs": {"alone": {"1": 1.0, "2": 1.0}}}
    plan, state = policy.plan(view, alone)
    after = applied(view, plan)
    slow = replace(
        after,
        jobs=tuple(replace(j, facts=replace(j.facts, step_time=2.5)) for j in after.jobs),
        now=after.now + 60.0,
    )

    plan, state = policy.plan(slow, state)

    assert len(plan.allocs) == 1
    assert state["packs"]["barred"] == [[1, 2]]

    leaving = replace(slow.jobs[1], phase=JobPhase.LEAVING)
    _, state = policy.plan(replace(slow, jobs=(slow.jobs[0], leaving)), state)
    assert state["packs"]["barred"] == [[1, 2]]


@pytest.mark.parametrize("packing", [False, True])
def test_jobs_that_may_not_share_never_do(packing):
    view = make_view([make_job(i, types=("a",)) for i in (1, 2)], {"a": 1}, model=Packable())

    _, plans = run(view, 4, packing=packing)

    assert all(alloc.share is None for plan in plans for alloc in plan.allocs.values())
