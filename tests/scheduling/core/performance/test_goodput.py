"""Goodput: throughput times efficiency, at the best batch that the limits allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.performance.goodput import (
    BatchLimits,
    Noise,
    Throughput,
    best_batch,
    best_goodputs,
    candidate_step_times,
    candidates,
    stacked,
)
from tessera.efficiency import efficiency, gain

MODEL = Throughput(0.02, 0.001, 0.05, 0.002, 0.01, 0.0005, 1.6)
LIMITS = BatchLimits(initial=32, largest=1024, local_min=8, local_max=128)
SHAPES = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))


@given(sqr=st.floats(0.001, 1000), var=st.floats(0.001, 1000), scale=st.floats(1.0, 512.0))
def test_a_larger_batch_is_worth_more_steps_and_less_per_sample(sqr, var, scale):
    assert 1.0 - 1e-9 <= gain(sqr, var, 1.0 / scale) <= scale + 1e-9
    assert 0.0 < efficiency(sqr, var, 1.0 / scale) <= 1.0 + 1e-9
    assert gain(sqr, var, 1.0) == pytest.approx(1.0)


def test_without_noise_large_batches_are_worth_nothing_and_with_it_everything():
    assert gain(1.0, 1e-12, 1 / 64) == pytest.approx(1.0)
    assert gain(1e-12, 1.0, 1 / 64) == pytest.approx(64.0)


@pytest.mark.parametrize("devices", [1, 2, 3, 8, 16])
def test_candidates_keep_every_limit_or_are_blocked(devices):
    table = candidates(LIMITS, devices)
    total = devices * table.local_batch * (table.accumulation + 1)

    free = ~table.blocked
    assert (table.local_batch[free] >= LIMITS.local_min).all()
    assert (table.local_batch[free] <= LIMITS.local_max).all()
    assert (total[free] >= LIMITS.initial).all()
    assert (total[free] < LIMITS.largest + devices * (table.accumulation[free] + 1)).all()
    assert np.allclose(table.inverse_scale, LIMITS.initial / total)


def test_one_device_accumulates_as_soon_as_it_leaves_the_initial_batch():
    table = candidates(LIMITS, 1)

    assert table.accumulation[0] == 0
    assert (table.accumulation[1:] >= 1).all()


def test_a_fixed_batch_is_the_only_candidate():
    fixed = BatchLimits(initial=32, largest=256, local_min=8, local_max=128, fixed=True)

    table = candidates(fixed, 4)

    assert set(table.local_batch.tolist()) == {64.0}


def test_the_table_of_many_shapes_agrees_with_the_choice_on_each():
    noise = Noise(0.5, 40.0)
    table = stacked(LIMITS, tuple(devices for _nodes, devices in SHAPES))

    other = Throughput(0.01, 0.002, 0.02, 0.001, 0.03, 0.0001, 2.5)
    noises = [noise, Noise(2.0, 5.0)]

    times = candidate_step_times([MODEL, other], [table, table], [SHAPES, SHAPES])
    values = best_goodputs(list(times), [table, table], noises)

    for model, mine, row in zip((MODEL, other), noises, values, strict=True):
        for (nodes, devices), value in zip(SHAPES, row, strict=True):
            assert best_batch(model, mine, LIMITS, nodes, devices).goodput == pytest.approx(value)
    assert (np.diff(values[0][:3]) > 0).all()


def test_jobs_with_and_without_overlap_are_timed_together_as_apart():
    table = stacked(LIMITS, tuple(devices for _nodes, devices in SHAPES))
    models = [MODEL, MODEL._replace(gamma=1.0), MODEL._replace(gamma=10.0)]

    together = candidate_step_times(models, [table] * 3, [SHAPES] * 3)
    values = best_goodputs(together, [table] * 3, [Noise(1.0, 4.0)] * 3)

    for model, mine in zip(models, values, strict=True):
        each = [best_batch(model, Noise(1.0, 4.0), LIMITS, *shape).goodput for shape in SHAPES]
        assert mine.tolist() == pytest.approx(each, rel=1e-12)


def test_noisier_gradients_choose_larger_batches():
    calm = best_batch(MODEL, Noise(10.0, 1.0), LIMITS, 1, 4)
    noisy = best_batch(MODEL, Noise(0.01, 100.0), LIMITS, 1, 4)

    assert noisy.local_batch * (noisy.accumulation + 1) > calm.local_batch


def test_a_size_that_needs_more_than_the_largest_total_is_judged_at_the_least_it_needs():
    tight = BatchLimits(initial=32, largest=64, local_min=8, local_max=16)

    table = candidates(tight, 16)

    assert set(table.local_batch[~table.blocked].tolist()) == {8.0}


def test_a_batch_per_device_out_of_bounds_is_worth_nothing():
    fixed = BatchLimits(initial=32, largest=64, local_min=16, local_max=32, fixed=True)
    table = stacked(fixed, (16,))

    times = candidate_step_times([MODEL], [table], [((4, 16),)])
    values = best_goodputs(list(times), [table], [Noise(1, 1)])

    assert [row.tolist() for row in values] == [[0.0]]
