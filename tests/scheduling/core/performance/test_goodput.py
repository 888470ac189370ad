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
    candidates,
)
from tessera.efficiency import efficiency, gain

MODEL = Throughput(0.02, 0.001, 0.05, 0.002, 0.01, 0.0005, 1.6)
LIMITS = BatchLimits(initial=32, largest=1024, local_min=8, local_max=128)


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


def test_noisier_gradients_choose_larger_batches():
    calm = best_batch(MODEL, Noise(10.0, 1.0), LIMITS, 1, 4)
    noisy = best_batch(MODEL, Noise(0.01, 100.0), LIMITS, 1, 4)

    assert noisy.local_batch * (noisy.accumulation + 1) > calm.local_batch


def test_a_size_that_needs_more_than_the_largest_total_is_judged_at_the_least_it_needs():
    tight = BatchLimits(initial=32, largest=64, local_min=8, local_max=16)

    table = candidates(tight, 16)

    assert set(table.local_batch[~table.blocked].tolist()) == {8.0}
