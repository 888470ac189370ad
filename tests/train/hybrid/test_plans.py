"""Parallel plans, the order of passes, and the transfers between stages."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.train import ParallelPlan, PlanError, Stage
from tessera.train.hybrid.plans import (
    PLAN_VARIABLE,
    Action,
    actions_of,
    plan_of_job,
    read_plan,
    transfers_of,
)

WIDTHS = st.integers(1, 4)


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    sizes = draw(st.lists(st.tuples(st.integers(1, 3), WIDTHS, WIDTHS), min_size=1, max_size=4))
    stages, first = [], 0
    for layers, data, tensor in sizes:
        stages.append(Stage(first, first + layers, data, tensor))
        first += layers
    micro_batches = draw(st.integers(1, 6))
    return ParallelPlan(
        stages=tuple(stages),
        micro_batches=micro_batches,
        batch=micro_batches * 12 * draw(st.integers(1, 2)),
        schedule=draw(st.sampled_from(["1f1b", "gpipe"])),
    )


@given(plans())
def test_a_plan_is_the_same_after_it_was_written(plan: ParallelPlan) -> None:
    document = plan.document()

    assert read_plan(json.loads(json.dumps(document))) == plan
    assert document["id"] == read_plan(document).document()["id"]


@given(plans())
def test_ranks_and_places_correspond(plan: ParallelPlan) -> None:
    places = [plan.place_of(rank) for rank in range(plan.processes)]

    assert len(set(places)) == plan.processes
    assert [plan.rank_of(place) for place in places] == [*range(plan.processes)]
    with pytest.raises(PlanError):
        plan.place_of(plan.processes)


@given(plans())
def test_each_micro_batch_passes_once_in_each_direction_and_in_order(plan: ParallelPlan) -> None:
    for stage in range(len(plan.stages)):
        actions = actions_of(plan, stage)
        for is_forward in (True, False):
            numbers = [a.micro_batch for a in actions if a.is_forward is is_forward]
            assert numbers == [*range(plan.micro_batches)]
        for number in range(plan.micro_batches):
            assert actions.index(Action(True, number)) < actions.index(Action(False, number))


@given(plans())
def test_1f1b_stores_at_most_one_micro_batch_per_stage_behind(plan: ParallelPlan) -> None:
    for stage in range(len(plan.stages)):
        stored = most = 0
        for action in actions_of(plan, stage):
            stored += 1 if action.is_forward else -1
            most = max(most, stored)
        behind = len(plan.stages) - stage
        limit = behind if plan.schedule == "1f1b" else plan.micro_batches
        assert most == min(limit, plan.micro_batches)


@given(plans())
def test_no_stage_waits_for_ever(plan: ParallelPlan) -> None:
    """Run the passes of all stages: each can begin when its messages were sent."""
    waiting = [actions_of(plan, stage) for stage in range(len(plan.stages))]
    done: set[tuple[int, Action]] = set()
    while any(waiting):
        ready = [
            stage
            for stage, actions in enumerate(waiting)
            if actions
            and (before := stage + (-1 if actions[0].is_forward else 1)) is not None
            and (not 0 <= before < len(waiting) or (before, actions[0]) in done)
        ]
        assert ready
        for stage in ready:
            done.add((stage, waiting[stage].pop(0)))


@given(plans())
def test_each_process_receives_each_of_its_samples_once(plan: ParallelPlan) -> None:
    for source in range(len(plan.stages)):
        for target in (source - 1, source + 1):
            if not 0 <= target < len(plan.stages):
                continue
            sender, receiver = plan.stages[source], plan.stages[target]
            received: Counter[tuple[int, int, int]] = Counter()
            for transfer in transfers_of(plan, source, target):
                size = plan.samples // sender.data
                begin = transfer.source.data * size
                assert begin <= transfer.first < transfer.last <= begin + size
                for sample in range(transfer.first, transfer.last):
                    received[transfer.target.data, transfer.target.tensor, sample] += 1
            size = plan.samples // receiver.data
            assert received == Counter(
                (data, tensor, sample)
                for data in range(receiver.data)
                for tensor in range(receiver.tensor)
                for sample in range(data * size, (data + 1) * size)
            )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"version": 2}, "version 1"),
        ([], "version 1"),
        ({"version": 1, "stages": 5}, "not a list"),
        ({"version": 1, "stages": [], "micro_batches": 1, "batch": 1}, "needs stages"),
        (
            {"version": 1, "stages": [{"first": 1, "last": 2}], "micro_batches": 1, "batch": 1},
            "lay",
        ),
        ({"version": 1, "stages": [{"first": 0, "last": 2, "x": 1}]}, "unknown key 'x'"),
        ({"version": 1, "stages": [{"first": 0, "last": True}]}, "`last`"),
        (
            {"version": 1, "stages": [{"first": 0, "last": 2, "data": 2}], "micro_batches": 2}
            | {"batch": 6},
            "does not divide",
        ),
        (
            {"version": 1, "stages": [{"first": 0, "last": 2}], "micro_batches": 1, "batch": 1}
            | {"schedule": "zigzag"},
            "unknown schedule",
        ),
    ],
)
def test_a_plan_that_is_not_valid_is_refused(document: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        read_plan(document)


def test_the_plan_of_a_job_is_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLAN_VARIABLE, raising=False)
    assert plan_of_job() is None
    plan = ParallelPlan((Stage(0, 2, 2, 2),), micro_batches=2, batch=8)
    monkeypatch.setenv(PLAN_VARIABLE, json.dumps(plan.document()))
    assert plan_of_job() == plan
    monkeypatch.setenv(PLAN_VARIABLE, "{")
    with pytest.raises(PlanError, match=PLAN_VARIABLE):
        plan_of_job()
