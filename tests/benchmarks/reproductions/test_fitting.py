"""The throughput model: what it says of times, and how it is fitted to them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.reproductions.fitting import Observation, fit_throughput
from scheduling.core.performance.goodput import (
    Throughput,
    exchange_time,
    pass_times,
    step_times,
)

TRUE = Throughput(
    alpha_c=0.02, beta_c=0.001, alpha_n=0.05, beta_n=0.002, alpha_r=0.01, beta_r=0.0005, gamma=1.6
)


def seen(model, *shapes):
    found = []
    for nodes, devices, batch in shapes:
        passes = pass_times(model, batch)
        step = step_times(model, passes, exchange_time(model, nodes, devices), 0)
        found.append(Observation(nodes, devices, batch, step, step - passes))
    return tuple(found)


def predicted(model, nodes, devices, batch):
    return step_times(model, pass_times(model, batch), exchange_time(model, nodes, devices), 0)


def test_a_rich_history_is_met_within_a_few_percent():
    shapes = [
        (nodes, devices, batch)
        for nodes, devices in ((1, 1), (1, 2), (1, 4), (2, 8), (3, 12))
        for batch in (16, 64, 128)
    ]

    model = fit_throughput(seen(TRUE, *shapes))

    for shape in [*shapes, (4, 16, 96)]:
        assert predicted(model, *shape) == pytest.approx(predicted(TRUE, *shape), rel=0.05)


def test_one_observation_on_one_device_promises_perfect_scaling():
    model = fit_throughput(seen(TRUE, (1, 1, 32)))

    assert model.alpha_c == pytest.approx(pass_times(TRUE, 32) / 2)
    assert predicted(model, 1, 8, 32) == pytest.approx(predicted(model, 1, 1, 32), rel=1e-3)
    assert predicted(model, 4, 16, 32) == pytest.approx(predicted(model, 1, 1, 32), rel=1e-3)


def test_nodes_that_were_never_crossed_cost_at_least_a_tenth_more():
    model = fit_throughput(seen(TRUE, (1, 1, 32), (1, 2, 32), (1, 4, 32)))

    assert model.alpha_n >= 1.1 * model.alpha_r
    assert model.beta_n >= 1.1 * model.beta_r


def test_pairs_alone_report_nothing_of_growth():
    model = fit_throughput(seen(TRUE, (1, 2, 32), (1, 2, 64)))

    assert model.beta_r == pytest.approx(1e-8)


def test_without_observations_there_is_no_fit():
    with pytest.raises(ValueError, match="no observations"):
        fit_throughput(())


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 8), st.sampled_from([8, 16, 40])),
        min_size=1,
        max_size=8,
        unique=True,
    ),
    noise=st.integers(0, 3),
)
def test_a_fit_is_finite_within_bounds_and_near_what_was_seen(shapes, noise):
    chance = np.random.default_rng(noise)
    clean = seen(
        TRUE, *[(min(nodes, devices), devices, batch) for nodes, devices, batch in shapes]
    )
    noisy = tuple(
        row._replace(step=row.step * f, sync=row.sync * f)
        for row, f in zip(clean, chance.uniform(0.95, 1.05, len(clean)), strict=True)
    )

    model = fit_throughput(noisy)

    assert all(np.isfinite(model))
    assert min(model[:6]) >= 1e-8
    assert 1.0 <= model.gamma <= 10.0
    errors = [
        np.log(predicted(model, row.nodes, row.devices, row.local_batch) / row.step)
        for row in noisy
    ]
    assert float(np.sqrt(np.mean(np.square(errors)))) < 0.12
