"""Replay of pipeline schedules: hand-made cases, an oracle, formulas and recorded cases."""

import json
import random
from functools import cache
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.grids.model import GridInputError, Schedule
from scheduling.core.grids.pipeline import Pipeline, replay, stage_actions

GPIPE, ONE_F_ONE_B = Schedule.GPIPE, Schedule.ONE_F_ONE_B


def test_one_stage_runs_everything_in_sequence():
    pipeline = Pipeline(forward=[2], backward=[3], transfer=[], micro_batches=4)

    assert replay(GPIPE, pipeline).seconds == 20
    assert replay(ONE_F_ONE_B, pipeline).seconds == 20


def test_two_stages_by_hand():
    # 1F1B: stage 0 F0 F1 B0 B1, stage 1 F0 B0 F1 B1.
    # Stage 1: F0 2..3, B0 3..5; F1, which arrived at 3, 5..6, B1 6..8.
    # Stage 0: B0 arrives at 6, 6..8; B1 arrives at 9, 9..11.
    pipeline = Pipeline(forward=[1, 1], backward=[2, 2], transfer=[1], micro_batches=2)

    assert replay(ONE_F_ONE_B, pipeline) == (11, (11, 8))
    # GPipe: stage 1 F0 2..3, F1 3..4, B0 4..6, B1 6..8; stage 0 B0 7..9, B1 9..11.
    assert replay(GPIPE, pipeline) == (11, (11, 8))


def test_a_link_carries_one_transfer_at_a_time_in_each_direction():
    # Activations arrive at 6 and 11: the second waits for the first. Gradients leave at 8 and 13.
    pipeline = Pipeline(forward=[1, 1], backward=[1, 1], transfer=[5], micro_batches=2)

    assert replay(ONE_F_ONE_B, pipeline) == (19, (19, 13))


def test_gradients_may_take_another_time_than_activations():
    pipeline = Pipeline(
        forward=[1, 1], backward=[2, 2], transfer=[1], transfer_back=[0], micro_batches=1
    )

    assert replay(GPIPE, pipeline).seconds == 1 + 1 + 1 + 2 + 2


def test_actions_of_one_f_one_b():
    actions = stage_actions(ONE_F_ONE_B, 1, 3, 4)

    assert [("FB"[a.backward], a.micro_batch) for a in actions] == [
        *[("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("F", 3), ("B", 2), ("B", 3)]
    ]


TIMES = st.integers(0, 6)


def pipelines(times=TIMES):
    """Pipelines of few whole seconds, so that events coincide."""

    def of(stages):
        def several(count):
            return st.lists(times, min_size=count, max_size=count)

        return st.builds(
            Pipeline,
            forward=several(stages),
            backward=several(stages),
            transfer=several(stages - 1),
            transfer_back=several(stages - 1),
            micro_batches=st.integers(1, 9),
        )

    return st.integers(1, 6).flatmap(of)


def _oracle(schedule, pipeline):
    """Ends by recursion from each action to those that it waits for."""
    stages, count = len(pipeline.forward), pipeline.micro_batches
    rows = [stage_actions(schedule, s, stages, count) for s in range(stages)]

    @cache
    def end(stage, position):
        if position < 0:
            return 0
        _, backward, m = rows[stage][position]
        ready = end(stage, position - 1)
        if backward and stage < stages - 1:
            ready = max(ready, arrival(stage, True, m))
        if not backward and stage > 0:
            ready = max(ready, arrival(stage - 1, False, m))
        return ready + (pipeline.backward if backward else pipeline.forward)[stage]

    @cache
    def arrival(link, backward, m):
        sender = link + 1 if backward else link
        sent = end(sender, rows[sender].index((sender, backward, m)))
        busy = arrival(link, backward, m - 1) if m else 0
        return max(sent, busy) + (pipeline.transfer_back if backward else pipeline.transfer)[link]

    return tuple(end(stage, 2 * count - 1) for stage in range(stages))


@given(pipeline=pipelines(), schedule=st.sampled_from(Schedule))
def test_the_replay_equals_a_recursive_oracle(pipeline, schedule):
    wanted = _oracle(schedule, pipeline)

    assert replay(schedule, pipeline) == (max(wanted), wanted)


@given(
    schedule=st.sampled_from(Schedule),
    stages=st.integers(1, 8),
    micro_batches=st.integers(1, 32),
    data=st.data(),
)
def test_each_stage_runs_every_pass_once_and_stores_what_in_flight_says(
    schedule, stages, micro_batches, data
):
    stage = data.draw(st.integers(0, stages - 1))
    actions = stage_actions(schedule, stage, stages, micro_batches)

    for backward in (False, True):
        order = [a.micro_batch for a in actions if a.backward is backward]
        assert order == list(range(micro_batches))
    stored, most = 0, 0
    for action in actions:
        stored += -1 if action.backward else 1
        most = max(most, stored)
        assert stored >= 0
    assert most == schedule.in_flight(stage, stages, micro_batches)


@given(pipeline=pipelines(st.integers(1, 6)))
def test_the_formula_of_crius_is_exact_for_gpipe_with_hidden_transfers(pipeline):
    least = min(pipeline.forward)
    plain = Pipeline(
        forward=pipeline.forward,
        backward=[2 * f for f in pipeline.forward],
        transfer=[min(t, least) for t in pipeline.transfer],
        micro_batches=pipeline.micro_batches,
    )
    passes = [3 * f for f in plain.forward]

    formula = sum(passes) + 2 * sum(plain.transfer) + (plain.micro_batches - 1) * max(passes)

    assert replay(GPIPE, plain).seconds == formula


def _closed_form_of_one_f_one_b(pipeline):
    """The formula of the specification for 1F1B, which exposes round trips over links."""
    k = [f + b for f, b in zip(pipeline.forward, pipeline.backward, strict=True)]
    c = [*pipeline.transfer, 0.0]
    stages, count = len(k), pipeline.micro_batches
    slowest = max(
        max(k[i], c[i], (sum(k[i:]) + 2 * sum(c[i:])) / min(stages - i, count))
        for i in range(stages)
    )
    return sum(k) + 2 * sum(c) + (count - 1) * slowest


@pytest.mark.parametrize("transfer", [0.0, 0.05, 0.2, 0.5])
def test_the_closed_form_of_one_f_one_b_is_near_the_replay(transfer):
    rng = random.Random(7)
    errors = []
    for _ in range(200):
        stages = rng.randint(2, 8)
        forward = [rng.uniform(0.7, 1.3) for _ in range(stages)]
        pipeline = Pipeline(
            forward=forward,
            backward=[2 * f for f in forward],
            transfer=[transfer * rng.uniform(0.7, 1.3) for _ in range(stages - 1)],
            micro_batches=rng.choice([8, 16, 32]),
        )
        exact = replay(ONE_F_ONE_B, pipeline).seconds
        errors.append(abs(_closed_form_of_one_f_one_b(pipeline) / exact - 1))

    assert median(errors) <= 0.02
    assert sorted(errors)[180] <= 0.07


@pytest.mark.parametrize("schedule", list(Schedule))
def test_recorded_pipelines(shared_dir, schedule):
    path = shared_dir / "cases" / "crius" / "pipelines.json"
    if not path.is_file():
        pytest.skip(f"no recorded pipelines at {path}")
    answer = {GPIPE: "gpipe_s", ONE_F_ONE_B: "one_f_one_b_s"}[schedule]
    for case in json.loads(path.read_text()):
        names = ("forward", "backward", "transfer", "micro_batches")
        found = replay(schedule, Pipeline(**{name: case[name] for name in names}))

        assert found.seconds == pytest.approx(case[answer], rel=1e-9)


@pytest.mark.parametrize(
    "change",
    [{"forward": []}, {"backward": [1]}, {"transfer": []}, {"transfer_back": [1, 1]}],
)
def test_lists_that_do_not_fit_together_are_refused(change):
    fitting = {"forward": [1, 1], "backward": [1, 1], "transfer": [1], "micro_batches": 1}

    with pytest.raises(GridInputError, match="do not fit"):
        Pipeline(**fitting | change)


def test_a_step_without_micro_batches_is_refused():
    with pytest.raises(GridInputError, match="micro_batches"):
        Pipeline(forward=[1], backward=[1], transfer=[], micro_batches=0)
