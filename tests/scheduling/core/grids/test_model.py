"""Grids of a job and shapes of a stage."""

import pytest

from scheduling.core.grids.model import (
    GridInputError,
    GridLimits,
    Schedule,
    StageShape,
    grids_of,
    profiled_shapes,
    stage_shapes,
)

WIDE = GridLimits(min_devices=1, max_devices=64, max_stages=64)


def _counts(limits: GridLimits, requested: int = 8) -> list[tuple[int, int]]:
    return [(grid.devices, grid.stages) for grid in grids_of(requested, ["a100"], limits)]


def test_eight_requested_devices_have_twelve_grids_of_each_type():
    grids = grids_of(8, ["a100", "a40"], WIDE)

    per_type = [(4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4), (8, 8)]
    per_type += [(16, 1), (16, 2), (16, 4), (16, 8), (16, 16)]
    assert [(g.type, g.devices, g.stages) for g in grids] == [
        (name, *counts) for name in ("a100", "a40") for counts in per_type
    ]
    assert [g.width for g in grids[:3]] == [4, 2, 1]


def test_one_requested_device_has_no_half():
    assert _counts(WIDE, requested=1) == [(1, 1), (2, 1), (2, 2)]


def test_limits_remove_grids():
    limits = GridLimits(min_devices=5, max_devices=15, min_stages=2, max_stages=6)

    assert _counts(limits) == [(8, 2), (8, 4)]


@pytest.mark.parametrize("requested", [0, -4, 3, 12])
def test_a_request_that_is_not_a_power_of_two_is_refused(requested):
    with pytest.raises(GridInputError, match=r"requested: .* not a power of two\. Use") as caught:
        grids_of(requested, ["a100"], WIDE)

    assert caught.value.value == requested


@pytest.mark.parametrize(
    ("devices", "shapes"),
    [
        (1, [(1, 1)]),
        (2, [(2, 1), (1, 2)]),
        (4, [(4, 1), (2, 2), (1, 4)]),
        (8, [(8, 1), (4, 2), (1, 8)]),
        (16, [(16, 1), (4, 4), (1, 16)]),
        (32, [(32, 1), (8, 4), (1, 32)]),
    ],
)
def test_three_shapes_are_profiled_from_four_devices(devices, shapes):
    assert [(s.data, s.tensor) for s in profiled_shapes(devices)] == shapes


def test_shapes_of_a_stage_go_from_data_to_tensor():
    assert [(s.data, s.tensor) for s in stage_shapes(8)] == [(8, 1), (4, 2), (2, 4), (1, 8)]
    assert {s.devices for s in stage_shapes(8)} == {8}


def test_a_shape_of_three_replicas_is_refused():
    with pytest.raises(GridInputError, match="data: 3"):
        StageShape(data=3, tensor=1)


def test_one_f_one_b_stores_fewer_micro_batches_in_later_stages():
    stored = [Schedule.ONE_F_ONE_B.in_flight(stage, 4, 3) for stage in range(4)]

    assert stored == [3, 3, 2, 1]
    assert [Schedule.GPIPE.in_flight(stage, 4, 3) for stage in range(4)] == [3, 3, 3, 3]
