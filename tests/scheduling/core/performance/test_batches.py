"""Step times of live jobs: fits, what they predict, and the batch that follows from them."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.performance.batches import (
    BatchedJob,
    choose_batch,
    fit_steps,
    goodput_of,
    limits_of,
    noise_of,
)
from scheduling.core.performance.goodput import BatchLimits, Noise, Throughput, exchange_time
from scheduling.core.policy_interface import Terms
from scheduling.core.values import Timed

TRUE = Throughput(0.02, 0.001, 0.05, 0.01, 0.01, 0.002, 1.0)
SIZES = ((1, 1), (1, 2), (1, 4), (2, 8))


def seconds(model, nodes, devices, batch, passes):
    exchange = exchange_time(model, nodes, devices)
    return passes * model.alpha_c + model.beta_c * batch / devices + exchange


def timed(nodes, devices, batch, passes=1, *, steps=50, noise=1.0):
    spent = steps * seconds(TRUE, nodes, devices, batch, passes) * noise
    return Timed(
        type="a",
        nodes=nodes,
        devices=devices,
        batch=batch,
        accumulation=passes,
        steps=steps,
        seconds=spent,
    )


def a_job(**changes):
    known = BatchedJob(
        type="a",
        nodes=1,
        devices=2,
        batch=64,
        accumulation=1,
        steps=100,
        unchanged=600.0,
        limits=BatchLimits(initial=64, largest=1024, local_min=1, local_max=128),
        noise=Noise(sqr=1.0, var=50.0),
        seen=(timed(1, 2, 64),),
    )
    return replace(known, **changes)


def test_a_fit_predicts_sizes_and_batches_that_it_has_not_seen():
    rng = np.random.default_rng(3)
    seen = tuple(
        timed(*size, batch, passes, noise=rng.uniform(0.97, 1.03))
        for size, batch, passes in itertools.product(SIZES, (64, 256), (1, 2))
    )

    model = fit_steps(seen)

    assert model is not None
    errors = [
        abs(seconds(model, n, d, batch, s) / seconds(TRUE, n, d, batch, s) - 1.0)
        for n, d, batch, s in ((1, 3, 128, 1), (2, 6, 512, 4), (1, 1, 32, 1), (1, 2, 1024, 2))
    ]
    assert float(np.median(errors)) < 0.1


def test_what_was_not_seen_costs_next_to_nothing():
    model = fit_steps((timed(1, 1, 64), timed(1, 1, 128)))

    assert model is not None
    assert model.alpha_c == pytest.approx(TRUE.alpha_c, rel=0.05)
    assert exchange_time(model, 1, 4) < exchange_time(model, 2, 4) < 1e-3
    assert fit_steps(()) is None


def test_of_one_size_of_pass_half_the_time_is_taken_to_be_fixed():
    model = fit_steps((timed(1, 1, 64),))

    assert model is not None
    assert model.alpha_c == pytest.approx(64 * model.beta_c, rel=0.01)
    assert model.alpha_c + 64 * model.beta_c == pytest.approx(seconds(TRUE, 1, 1, 64, 1), rel=0.01)


def test_noisy_gradients_get_a_larger_batch_and_it_is_not_chosen_twice():
    job = a_job()

    chosen = choose_batch(job)

    assert chosen is not None
    assert 64 < chosen.batch <= 128
    assert chosen.gain > 1.05
    same = replace(job, batch=chosen.batch, accumulation=chosen.accumulation)
    assert choose_batch(same) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 9},
        {"unchanged": 29.0},
        {"noise": Noise(sqr=1.0, var=0.0)},
        {"seen": ()},
        {"limits": BatchLimits(initial=64, largest=64, local_min=1, local_max=64)},
    ],
)
def test_a_batch_that_is_young_or_good_enough_stays(changes):
    assert choose_batch(a_job(**changes)) is None


@given(
    st.integers(1, 8),
    st.integers(16, 256),
    st.floats(0.0, 1e6),
    st.floats(1e-6, 1e6),
    st.integers(1, 6),
)
def test_a_choice_stays_within_its_limits_and_pays(devices, batch, var, sqr, factor):
    limits = BatchLimits(initial=32, largest=32 * factor * devices, local_min=1, local_max=64)
    seen = (timed(1, devices, batch), timed(1, devices, 2 * batch, 2))
    job = a_job(
        devices=devices, batch=batch, limits=limits, noise=Noise(sqr=sqr, var=var), seen=seen
    )

    chosen = choose_batch(job)

    if chosen is not None:
        assert limits.initial <= chosen.batch <= min(limits.largest, 4 * batch)
        assert chosen.batch <= devices * chosen.accumulation * limits.local_max
        model = fit_steps(seen)
        assert model is not None
        after = replace(job, batch=chosen.batch, accumulation=chosen.accumulation)
        assert goodput_of(model, after) > goodput_of(model, job)


def test_only_jobs_with_two_bounds_have_a_batch_to_choose():
    terms = Terms(batch=64, max_batch=256, max_local_batch=32)

    assert limits_of(Terms(batch=64)) is None
    assert limits_of(terms) == BatchLimits(initial=64, largest=256, local_min=1, local_max=32)
    assert (noise_of(None), noise_of((0.0, 0.0))) == (None, None)
