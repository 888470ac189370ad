"""Estimates of the grids of a small model."""

from dataclasses import replace
from itertools import product

import pytest

from scheduling.core.grids import (
    Estimator,
    Grid,
    GridInputError,
    GridLimits,
    GridState,
    LayerClass,
    LayerRun,
    LinkPoint,
    Links,
    LinkTable,
    MemoryRules,
    Profile,
    Schedule,
    StageShape,
    Training,
    grids_of,
)
from scheduling.core.grids.model import stage_shapes
from scheduling.core.grids.pipeline import Pipeline, replay
from scheduling.core.grids.stages import GridStage, edge_times, stage_option

MIB = 2**20


def _layer(name, seconds, parameters, *, overhead=0.0):
    """A layer whose time falls with the tensor width, but for its overhead."""
    runs = {}
    for tensor, samples in product((1, 2, 4, 8), (1, 2, 4, 8)):
        exchanged = samples * MIB
        runs[tensor, samples] = LayerRun(
            forward_s=overhead + seconds * samples / tensor,
            backward_s=overhead + 2 * seconds * samples / tensor,
            update_s=0.001 / tensor,
            parameter_bytes=parameters / tensor,
            activation_bytes=4 * MIB * samples / tensor,
            temporary_bytes=MIB,
            boundary_bytes=exchanged,
            flops=seconds,
            exchanges=(("all_reduce", exchanged, 1), ("all_reduce_backward", exchanged, 1))
            if tensor > 1
            else (),
        )
    return LayerClass(name=name, runs=runs)


def _table(seconds_per_mib):
    groups = [("send", 2), *product(("all_reduce", "all_gather", "reduce_scatter"), (2, 4, 8))]
    return LinkTable(
        tuple(
            LinkPoint(primitive, group, size * MIB, seconds_per_mib * size)
            for primitive, group in groups
            for size in (1, 64)
        )
    )


LINKS = Links(
    spans=(("node", 4), ("rack", 64)), tables={"node": _table(1e-4), "rack": _table(1e-2)}
)
PROFILE = Profile(
    type="a100",
    device_memory=1000 * MIB,
    layers=("Embed", *["Block"] * 6, "Head"),
    classes={
        "Embed": _layer("Embed", 0.01, 10 * MIB),
        "Block": _layer("Block", 0.02, 20 * MIB),
        "Head": _layer("Head", 0.01, 10 * MIB),
    },
)
TRAINING = Training(batch=64, micro_batches=8)
ESTIMATOR = Estimator(profile=PROFILE, links=LINKS, training=TRAINING)


def _grid(devices, stages):
    return Grid(type="a100", devices=devices, stages=stages)


def test_one_device_runs_all_layers_in_sequence():
    found = ESTIMATOR.estimate(_grid(1, 1))

    passes = 8 * 3 * 8 * (0.01 + 6 * 0.02 + 0.01)  # micro-batches, passes, samples
    assert found.state is GridState.POSSIBLE
    assert found.step_seconds == pytest.approx(passes + 8 * 0.001)
    assert found.samples_per_second == pytest.approx(64 / found.step_seconds)
    # 140 MiB of parameters with Adam, 8 micro-batches of one stage: one in flight.
    assert found.stage_bytes == pytest.approx((1.1 * (4 * 140 + 8 * 4 * 8 + 1) * MIB,))


def test_a_pipeline_has_balanced_stages_and_the_time_of_its_replay():
    found = ESTIMATOR.estimate(_grid(2, 2))

    assert found.plan is not None
    assert [(s.first, s.last) for s in found.plan.stages] == [(0, 4), (4, 8)]
    assert found.plan.devices == 2
    forward, send = 8 * 0.07, 8e-4
    step = replay(
        Schedule.ONE_F_ONE_B,
        Pipeline(
            forward=[forward] * 2, backward=[2 * forward] * 2, transfer=[send], micro_batches=8
        ),
    )
    assert found.step_seconds == pytest.approx(step.seconds + 0.004)
    # The first stage stores two micro-batches, the second one.
    states, activations = 4 * 70, 4 * 4 * 8
    assert found.stage_bytes == pytest.approx(
        (1.1 * (states + 2 * activations + 1) * MIB, 1.1 * (states + activations + 1) * MIB)
    )


def test_the_plan_of_a_grid_is_the_best_of_all_its_plans():
    for grid in grids_of(4, ["a100"], GridLimits(min_devices=2, max_devices=8, max_stages=4)):
        found = ESTIMATOR.estimate(grid)
        if found.plan is None:
            continue
        stages = [
            GridStage(grid=grid, index=i, first=s.first, last=s.last)
            for i, s in enumerate(found.plan.stages)
        ]
        rows = [
            [
                option
                for shape in stage_shapes(grid.width)
                if (option := _option(stage, shape)).state is GridState.POSSIBLE
            ]
            for stage in stages
        ]
        every = ESTIMATOR._timed(stages, rows)
        least = min(every.step_seconds(c) for c in product(*(range(len(row)) for row in rows)))

        assert found.step_seconds == pytest.approx(least)


def _option(stage, shape, training=TRAINING, profile=PROFILE, links=LINKS):
    return stage_option(stage, shape, profile=profile, links=links, training=training)


def _stage(width=4, index=0, stages=2):
    return GridStage(grid=_grid(width * stages, stages), index=index, first=0, last=4)


def test_times_of_a_stage_in_each_shape():
    data = _option(_stage(), StageShape(data=4, tensor=1))
    mixed = _option(_stage(), StageShape(data=2, tensor=2))

    assert data.times.forward_s == pytest.approx(2 * 0.07)
    assert data.times.exchange_s == pytest.approx(70 * 1e-4)
    assert data.times.update_s == pytest.approx(0.004)
    # Two of four samples' times, plus one all-reduce of 4 MiB in each of four layers.
    assert mixed.times.forward_s == pytest.approx(4 * 0.07 / 2 + 4 * 4e-4)
    assert mixed.times.backward_s == pytest.approx(2 * 4 * 0.07 / 2 + 4 * 4e-4)
    assert mixed.times.exchange_s == pytest.approx(35 * 1e-4)


def test_checkpointing_repeats_the_forward_pass_and_saves_memory():
    shape = StageShape(data=4, tensor=1)
    rules = MemoryRules(checkpointing=True)

    plain = _option(_stage(), shape)
    saving = _option(_stage(), shape, replace(TRAINING, memory=rules))

    assert saving.times.backward_s == pytest.approx(3 * plain.times.forward_s)
    assert saving.times.forward_s == plain.times.forward_s
    assert saving.device_bytes < plain.device_bytes


def test_replicas_that_share_their_state_scatter_and_gather_it():
    shape = StageShape(data=4, tensor=1)
    rules = MemoryRules(sharded=True)

    plain = _option(_stage(), shape)
    sharded = _option(_stage(), shape, replace(TRAINING, memory=rules))

    assert sharded.times.exchange_s == pytest.approx(2 * plain.times.exchange_s)
    assert sharded.times.update_s == pytest.approx(plain.times.update_s / 4)
    assert sharded.device_bytes < plain.device_bytes


def test_groups_beyond_a_node_use_the_wider_links():
    inside = _option(_stage(8, stages=1), StageShape(data=2, tensor=4))
    across = _option(_stage(8, stages=1), StageShape(data=1, tensor=8))

    assert inside.times.exchange_s == pytest.approx(70 / 4 * 1e-2)  # replicas are 4 devices apart
    assert across.times.forward_s == pytest.approx(8 * 0.07 / 8 + 4 * 8e-2)


def test_stages_of_equal_shape_send_to_their_counterparts():
    stage = _stage(2)
    before = _option(stage, StageShape(data=2, tensor=1))

    edge = edge_times(stage, before, StageShape(data=2, tensor=1), LINKS)

    assert edge == pytest.approx((4e-4, 4e-4))  # half of 8 MiB within the node


def test_stages_of_other_shapes_send_shares_and_gather_them():
    stage = _stage(2)
    before = _option(stage, StageShape(data=2, tensor=1))

    edge = edge_times(stage, before, StageShape(data=1, tensor=2), LINKS)

    assert edge.backward_s == pytest.approx(4e-4)
    assert edge.forward_s == pytest.approx(4e-4 + 8e-4)  # the receivers gather all 8 MiB
    back = _option(stage, StageShape(data=1, tensor=2))
    assert edge_times(stage, back, StageShape(data=2, tensor=1), LINKS) == pytest.approx(
        (4e-4, 4e-4 + 8e-4)
    )


def test_links_between_nodes_carry_the_transfers_of_wide_stages():
    stage = _stage(4)
    before = _option(stage, StageShape(data=4, tensor=1))

    edge = edge_times(stage, before, StageShape(data=4, tensor=1), LINKS)

    assert edge.forward_s == pytest.approx(2e-2)


@pytest.mark.parametrize(
    ("change", "shape", "state"),
    [
        ({}, (4, 1), GridState.POSSIBLE),
        ({"max_tensor": 2}, (1, 4), GridState.NOT_ALLOWED),
        ({"batch": 16}, (4, 1), GridState.NOT_ALLOWED),  # two samples for four replicas
        ({"batch": 48}, (4, 1), GridState.NOT_ALLOWED),  # six samples
        ({"tensor_within": "node"}, (1, 4), GridState.POSSIBLE),
        ({"memory": MemoryRules(state_factor=16)}, (4, 1), GridState.TOO_LARGE),
    ],
)
def test_reasons_against_a_shape(change, shape, state):
    training = replace(TRAINING, **change)

    assert _option(_stage(), StageShape(data=shape[0], tensor=shape[1]), training).state is state


def test_tensor_groups_may_be_limited_to_a_node():
    training = replace(TRAINING, tensor_within="node")
    stage = _stage(8, stages=1)

    states = [_option(stage, shape, training).state for shape in stage_shapes(8)]

    assert states == [*[GridState.POSSIBLE] * 3, GridState.TOO_SLOW_LINK]


@pytest.mark.parametrize(
    ("changes", "grid", "state"),
    [
        ({}, (16, 16), GridState.NOT_ALLOWED),  # more stages than layers and micro-batches
        ({"training": replace(TRAINING, micro_batches=2)}, (4, 4), GridState.NOT_ALLOWED),
        ({"profile": replace(PROFILE, device_memory=100 * MIB)}, (1, 1), GridState.TOO_LARGE),
        ({"links": replace(LINKS, tables={})}, (2, 2), GridState.NOT_PROFILED),
        ({"links": replace(LINKS, tables={})}, (2, 1), GridState.NOT_PROFILED),
        ({"links": replace(LINKS, tables={})}, (1, 1), GridState.POSSIBLE),
    ],
)
def test_states_of_grids(changes, grid, state):
    found = replace(ESTIMATOR, **changes).estimate(_grid(*grid))

    assert found.state is state
    assert (found.plan is not None) == (state is GridState.POSSIBLE)


def test_a_grid_that_is_too_large_shows_the_memory_that_it_needs():
    estimator = replace(ESTIMATOR, profile=replace(PROFILE, device_memory=200 * MIB))

    found = estimator.estimate(_grid(2, 2))

    assert found.state is GridState.TOO_LARGE
    assert found.stage_bytes[0] > found.stage_bytes[1] > 200 * MIB


def test_a_shape_that_was_not_profiled_is_used_if_no_other_fits():
    # The two samples of a micro-batch allow two replicas, and tensor groups at most 4 devices.
    training = Training(batch=16, micro_batches=8, max_tensor=4)
    found = replace(ESTIMATOR, training=training).estimate(_grid(8, 1))

    assert found.plan is not None
    assert found.plan.stages[0].shape == StageShape(data=2, tensor=4)


def test_a_batch_that_micro_batches_do_not_divide_is_refused():
    with pytest.raises(GridInputError, match="multiple of `micro_batches`"):
        Training(batch=10, micro_batches=4)
