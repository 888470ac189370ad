"""The noise of gradients is estimated right, and efficiency follows from it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.train.noise import NoiseScale, rate_factor

SIZES = st.floats(0.0, 1e6)
SCALES = st.floats(1.0, 64.0)


def known(square: float, variance: float) -> NoiseScale:
    return NoiseScale(square_sum=square, variance_sum=variance, weight=1.0)


@pytest.mark.parametrize(("parts", "scale"), [(2, 1.0), (4, 1.0), (8, 4.0)])
def test_the_truth_is_found_from_the_parts_of_a_batch(parts: int, scale: float) -> None:
    chance = np.random.default_rng(1)
    truth = chance.normal(size=200)
    deviation = 2.0  # of each coordinate of the initial batch's gradient
    noise = NoiseScale()
    for _ in range(2000):
        spread = deviation * math.sqrt(parts / scale)
        gradients = truth + chance.normal(size=(parts, 200)) * spread
        noise.update(
            parts=parts,
            mean_of_squares=float((gradients**2).sum(axis=1).mean()),
            square_of_mean=float((gradients.mean(axis=0) ** 2).sum()),
            scale=scale,
        )

    assert noise.square == pytest.approx((truth**2).sum(), rel=0.1)
    assert noise.variance == pytest.approx(200 * deviation**2, rel=0.1)


def test_the_truth_is_found_from_consecutive_steps() -> None:
    chance = np.random.default_rng(2)
    truth = chance.normal(size=200)
    noise = NoiseScale()
    earlier = truth + chance.normal(size=200)
    for _ in range(2000):
        gradient = truth + chance.normal(size=200)
        noise.between(
            earlier_square=float(earlier @ earlier),
            square=float(gradient @ gradient),
            product=float(earlier @ gradient),
            scale=1.0,
        )
        earlier = gradient

    assert noise.square == pytest.approx((truth**2).sum(), rel=0.1)
    assert noise.variance == pytest.approx(200, rel=0.1)


@given(SIZES, SIZES, SCALES)
def test_gain_and_efficiency_stay_in_their_bounds(
    square: float, variance: float, scale: float
) -> None:
    noise = known(square, variance)

    assert 1 - 1e-9 <= noise.gain(scale) <= scale * (1 + 1e-9)
    assert 1 / scale - 1e-9 <= noise.efficiency(scale) <= 1 + 1e-9


@given(st.floats(1e-3, 1e6), SIZES, SCALES, SCALES)
def test_a_larger_batch_gains_more_and_less_for_each_sample(
    square: float, variance: float, one: float, other: float
) -> None:
    small, large = sorted((one, other))
    noise = known(square, variance)

    assert noise.gain(small) <= noise.gain(large) * (1 + 1e-9)
    assert noise.efficiency(large) <= noise.efficiency(small) * (1 + 1e-9)


def test_pure_noise_gains_the_whole_scale_and_no_noise_nothing() -> None:
    assert known(0.0, 5.0).gain(8) == pytest.approx(8)
    assert known(5.0, 0.0).gain(8) == pytest.approx(1)
    assert NoiseScale().gain(8) == 1


def test_rules_of_the_learning_rate() -> None:
    noise = known(1.0, 3.0)

    assert rate_factor("adascale", noise, 4) == pytest.approx(4 / (3 / 4 + 1))
    assert rate_factor("sqrt", noise, 4) == 2
    assert rate_factor("linear", noise, 4) == 4
    with pytest.raises(ValueError, match="one of adascale, sqrt, linear"):
        rate_factor("cube", noise, 4)


def test_what_overflowed_changes_nothing() -> None:
    noise = known(1.0, 3.0)

    noise.update(parts=2, mean_of_squares=math.inf, square_of_mean=1.0, scale=1.0)

    assert noise == known(1.0, 3.0)


def test_one_gradient_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 gradients"):
        NoiseScale().update(parts=1, mean_of_squares=1.0, square_of_mean=1.0, scale=1.0)


def test_the_state_comes_back() -> None:
    noise = NoiseScale()
    noise.update(parts=2, mean_of_squares=2.0, square_of_mean=1.5, scale=1.0)

    assert NoiseScale.from_state(noise.to_state()) == noise
