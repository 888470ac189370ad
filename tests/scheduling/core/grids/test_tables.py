"""The table of best grids: one row for each shape, with the plan for the trainer."""

import pytest

from scheduling.core.grids import (
    Grid,
    GridEstimate,
    GridState,
    ParallelPlan,
    PipelineStage,
    StageShape,
)
from scheduling.core.grids.model import Schedule
from scheduling.core.grids.tables import grid_table
from scheduling.core.policy_interface import GRIDS_PER_JOB, BestGrid, grid_at, grid_types
from tessera.train.hybrid.plans import read_plan


def estimate(kind, devices, stages, seconds, layers=8):
    """Return an estimate with equal stages of replicas."""
    width, each = devices // stages, layers // stages
    plan = ParallelPlan(
        stages=tuple(
            PipelineStage(
                first=n * each, last=(n + 1) * each, shape=StageShape(data=width, tensor=1)
            )
            for n in range(stages)
        ),
        micro_batches=8,
        schedule=Schedule.ONE_F_ONE_B,
    )
    grid = Grid(type=kind, devices=devices, stages=stages)
    return GridEstimate(grid=grid, state=GridState.POSSIBLE, plan=plan, step_seconds=seconds)


def test_the_fastest_grid_of_a_shape_is_its_row():
    found = grid_table(
        [estimate("A100", 4, 1, 0.5), estimate("A100", 4, 4, 0.25), estimate("A40", 4, 2, 1.0)],
        batch=64,
        node_devices={"A100": 8, "A40": 2},
    )

    assert [(row.type, row.devices, row.nodes, row.stages, row.rate) for row in found] == [
        ("A100", 4, 1, 4, 4.0),
        ("A40", 4, 2, 2, 1.0),
    ]


def test_equally_fast_grids_prefer_fewer_stages():
    (row,) = grid_table(
        [estimate("A100", 4, 4, 0.5), estimate("A100", 4, 2, 0.5)], batch=64, node_devices={}
    )

    assert row.stages == 2


def test_grids_without_a_plan_have_no_row():
    grid = Grid(type="A100", devices=4, stages=1)
    large = GridEstimate(grid=grid, state=GridState.TOO_LARGE)

    assert grid_table([large], batch=64, node_devices={}) == ()


def test_the_trainer_reads_the_plan_of_a_row():
    (row,) = grid_table([estimate("A100", 4, 2, 0.5)], batch=64, node_devices={})

    plan = read_plan(row.plan)
    assert (plan.processes, plan.layers, plan.batch) == (4, 8, 64)


def test_a_table_is_limited_and_drops_the_slowest_rows_of_each_type():
    many = [
        estimate(f"T{n:02}", 1 << size, 1, 1.0 / (size + 1))
        for n in range(30)
        for size in range(4)
    ]

    found = grid_table(many, batch=64, node_devices={})

    assert len(found) == GRIDS_PER_JOB
    assert grid_types(found, 8) == tuple(f"T{n:02}" for n in range(30))
    assert grid_types(found, 1) == ()


@pytest.mark.parametrize(("nodes", "rate"), [(1, 3.0), (2, 3.0), (3, 2.0), (9, 2.0)])
def test_a_shape_on_more_nodes_uses_the_nearest_row_below(nodes, rate):
    table = (
        BestGrid(type="A100", devices=4, nodes=2, rate=3.0),
        BestGrid(type="A100", devices=4, nodes=3, rate=2.0),
    )

    row = grid_at(table, "A100", nodes, 4)
    assert row is not None
    assert row.rate == rate


def test_a_shape_without_a_row_cannot_run():
    assert grid_at((BestGrid(type="A100", devices=4, rate=3.0),), "A100", 1, 8) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_row_has_a_positive_rate(rate):
    with pytest.raises(ValueError, match="leave out"):
        BestGrid(type="A100", devices=4, rate=rate)
