"""Tuning near the best profiled plan."""

import random
from itertools import pairwise, product
from statistics import mean

import pytest

from scheduling.core.grids.assembly import EdgeTimes, StageOptions, StageTimes, search
from scheduling.core.grids.model import Schedule, StageShape, profiled_shapes, stage_shapes
from scheduling.core.grids.tuning import shapes_near, tune


@pytest.mark.parametrize(
    ("winner", "near"),
    [
        ((1, 1), [1]),
        ((2, 1), [1]),
        ((1, 2), [2]),
        ((4, 1), [1, 2]),
        ((2, 2), [1, 2, 4]),
        ((1, 4), [2, 4]),
        ((8, 1), [1, 2]),
        ((4, 2), [1, 2, 4, 8]),
        ((1, 8), [4, 8]),
        ((16, 1), [1, 2, 4]),
        ((1, 16), [4, 8, 16]),
    ],
)
def test_the_half_on_the_side_of_the_winner(winner, near):
    shapes = shapes_near(StageShape(data=winner[0], tensor=winner[1]))

    assert [shape.tensor for shape in shapes] == near


@pytest.mark.parametrize(
    ("devices", "stages", "plans", "half"), [(16, 2, 16, 4), (16, 4, 81, 16), (32, 4, 256, 16)]
)
def test_sizes_of_the_half_space(devices, stages, plans, half):
    width = devices // stages
    data_only = StageShape(data=width, tensor=1)

    assert len(stage_shapes(width)) ** stages == plans
    assert len(shapes_near(data_only)) ** stages == half


def _plans(seconds, stages=1):
    return {
        (StageShape(data=data, tensor=tensor),) * stages: time
        for (data, tensor), time in seconds.items()
    }


def _tune(seconds, known):
    plans = _plans(seconds)
    asked = []

    def step_seconds(plan):
        asked.append((plan[0].data, plan[0].tensor))
        return plans[plan]

    profiled = {p: t for p, t in plans.items() if (p[0].data, p[0].tensor) in known}
    tuned = tune(plans, profiled, step_seconds)
    assert [(p[0].data, p[0].tensor) for p in tuned.explored] == asked
    return (tuned.chosen[0].data, tuned.chosen[0].tensor), tuned.seconds, asked


EIGHT = {(8, 1): 5.0, (4, 2): 6.0, (2, 4): 4.0, (1, 8): 9.0}


def test_only_unprofiled_plans_near_the_winner_are_explored():
    sixteen = {(16, 1): 5.0, (8, 2): 4.0, (4, 4): 7.0, (2, 8): 1.0, (1, 16): 9.0}

    assert _tune(sixteen, [(16, 1), (4, 4), (1, 16)]) == ((8, 2), 4.0, [(16, 1), (8, 2)])


def test_the_whole_range_is_explored_if_the_middle_shape_wins():
    seconds = EIGHT | {(4, 2): 4.5}

    assert _tune(seconds, [(8, 1), (4, 2), (1, 8)]) == ((2, 4), 4.0, [(4, 2), (2, 4)])


def test_a_better_plan_on_the_other_side_is_not_seen():
    assert _tune(EIGHT, [(8, 1), (4, 2), (1, 8)]) == ((8, 1), 5.0, [(8, 1)])


def test_without_a_profiled_plan_all_are_explored():
    assert _tune(EIGHT, []) == ((2, 4), 4.0, [(8, 1), (4, 2), (2, 4), (1, 8)])


def test_stages_are_tuned_each_on_its_own_side():
    shapes = stage_shapes(8)
    plans = list(product(shapes, shapes))
    winner = (shapes[0], shapes[-1])

    tuned = tune(plans, {winner: 3.0}, lambda plan: float(plan[0].tensor + plan[1].data))

    assert list(tuned.explored) == [(a, b) for a in shapes[:2] for b in (shapes[2], shapes[3])]
    assert tuned.chosen == winner


def _random_options(rng):
    """Stages whose tensor and gradient exchanges grow as those of rings do."""
    stages, width = rng.choice([1, 2, 4]), rng.choice([2, 4, 8])
    shapes = stage_shapes(width)
    rows = []
    for _ in range(stages):
        work, overhead = rng.uniform(1, 1.3), rng.uniform(0, 0.05)
        tensor, gradient = 10 ** rng.uniform(-3, 0), 10 ** rng.uniform(-2, 1)
        row = []
        for shape in shapes:
            parts = (shape.tensor - 1) / shape.tensor * tensor / shape.data
            forward = work / width + overhead + parts
            exchange = 2 * (shape.data - 1) / shape.data * gradient / shape.tensor
            row.append(StageTimes(forward, 2 * forward, exchange))
        rows.append(row)
    send = rng.uniform(0, 0.05)
    edges = [
        [[EdgeTimes(send, send * (1 + (a != b))) for b in shapes] for a in shapes]
        for _ in pairwise(rows)
    ]
    return shapes, StageOptions(
        stages=rows, edges=edges, micro_batches=8, schedule=Schedule.ONE_F_ONE_B
    )


def _share_and_reach(rng):
    """Share of all mixed plans that tuning explores, and of the best speed that it reaches."""
    shapes, options = _random_options(rng)
    plans = list(product(range(len(shapes)), repeat=len(options.stages)))
    columns = [shapes.index(shape) for shape in profiled_shapes(shapes[0].devices)]
    sampled = StageOptions(
        stages=[[row[k] for k in columns] for row in options.stages],
        edges=[[[edge[a][b] for b in columns] for a in columns] for edge in options.edges],
        micro_batches=options.micro_batches,
        schedule=options.schedule,
    )
    found = search(sampled)

    def of(choice):
        return tuple(shapes[k] for k in choice)

    profiled = {of(columns[k] for k in choice): t for choice, t in found.explored.items()}
    exact = {of(choice): options.step_seconds(choice) for choice in plans}
    tuned = tune(exact, profiled, exact.__getitem__)
    middle = any(
        1 < shape.tensor < shape.devices
        for shape in min(profiled, key=lambda plan: profiled[plan])
    )
    share = len(tuned.explored) / len(plans)
    return len(options.stages), middle, share, min(exact.values()) / tuned.seconds


def test_mixed_shapes_lose_little_against_full_enumeration():
    rng = random.Random(3)
    results = [_share_and_reach(rng) for _ in range(60)]

    reached = [reach for *_, reach in results]
    assert mean(reached) >= 0.995
    assert min(reached) >= 0.9
    assert all(share <= 1 / 2 for stages, middle, share, _ in results if stages > 1 and not middle)
    assert all(
        share <= 2 / 3 for stages, middle, share, _ in results if stages == 1 and not middle
    )
