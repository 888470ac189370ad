"""Profiles of layers, and memory of a stage."""

import pytest

from scheduling.core.grids.memory import MemoryRules
from scheduling.core.grids.model import GridInputError, StageShape
from scheduling.core.grids.profiles import (
    LayerClass,
    LayerRun,
    Profile,
    UnprofiledError,
    in_sequence,
)


def _run(factor, exchanges=()):
    return LayerRun(
        forward_s=1.0 * factor,
        backward_s=2.0 * factor,
        update_s=0.5,
        parameter_bytes=100,
        activation_bytes=40 * factor,
        temporary_bytes=10 * factor,
        boundary_bytes=8 * factor,
        flops=60 * factor,
        exchanges=exchanges,
    )


BLOCK = LayerClass(
    name="Block",
    runs={
        (1, 2): _run(1.0),
        (1, 4): _run(1.5),
        (2, 4): _run(1.0, (("all_reduce", 64.0, 2), ("all_reduce_backward", 64.0, 2))),
        (2, 8): _run(2.0, (("all_reduce", 128.0, 2), ("all_reduce_backward", 128.0, 2))),
    },
)
PROFILE = Profile(
    type="a100",
    device_memory=1000,
    layers=("Embed", "Block", "Block"),
    classes={"Block": BLOCK, "Embed": LayerClass(name="Embed", runs={(1, 2): _run(0.5)})},
)


def test_samples_are_interpolated_with_an_intercept():
    run = BLOCK.at(1, 3)

    assert (run.forward_s, run.backward_s, run.activation_bytes) == (1.25, 2.5, 50)
    assert BLOCK.at(1, 4) == _run(1.5)


def test_fewer_samples_than_measured_take_as_long_as_the_fewest():
    assert BLOCK.at(1, 1) == _run(1.0)


def test_messages_within_the_tensor_group_grow_with_the_samples():
    assert BLOCK.at(2, 6).exchanges == (
        ("all_reduce", 96.0, 2),
        ("all_reduce_backward", 96.0, 2),
    )


def test_tensor_widths_are_not_interpolated():
    with pytest.raises(UnprofiledError, match="Block was not measured at tensor width 4"):
        BLOCK.at(4, 2)


def test_each_replica_computes_its_part():
    runs = PROFILE.runs(0, 3, StageShape(data=2, tensor=1), 8)

    # Embed was measured with one number of samples only, so its times grow in proportion.
    assert [run.forward_s for run in runs] == [1.0, 1.5, 1.5]


def test_layers_in_sequence_add_up():
    merged = in_sequence([BLOCK.at(2, 4), BLOCK.at(2, 4), _run(2.0)])

    assert (merged.forward_s, merged.backward_s, merged.update_s) == (4.0, 8.0, 1.5)
    assert (merged.parameter_bytes, merged.activation_bytes) == (300, 160)
    assert (merged.temporary_bytes, merged.boundary_bytes, merged.flops) == (20, 16, 240)
    assert merged.exchanges == (("all_reduce", 64.0, 4), ("all_reduce_backward", 64.0, 4))


def test_a_layer_without_a_class_is_refused():
    with pytest.raises(GridInputError, match="Head has no measured class"):
        Profile(type="a100", device_memory=1, layers=("Head",), classes={})


LAYERS = [_run(1.0), _run(2.0)]  # 200 bytes of parameters, 120 of activations, 20 temporary


@pytest.mark.parametrize(
    ("rules", "data", "in_flight", "expected"),
    [
        (MemoryRules(margin=1), 1, 1, 800 + 120 + 20),
        (MemoryRules(margin=1), 4, 3, 800 + 360 + 20),
        (MemoryRules(margin=1, sharded=True), 4, 3, 200 + 360 + 20),
        (MemoryRules(margin=1, state_factor=2), 1, 1, 400 + 120 + 20),
        # Three micro-batches store 24 bytes of outputs each; one layer has its 80 bytes.
        (MemoryRules(margin=1, checkpointing=True), 1, 3, 800 + 72 + 80 + 20),
        (MemoryRules(), 1, 1, 1.1 * 940),
    ],
)
def test_memory_by_hand(rules, data, in_flight, expected):
    assert rules.stage_bytes(LAYERS, data=data, in_flight=in_flight) == pytest.approx(expected)
