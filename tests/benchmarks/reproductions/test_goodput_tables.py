"""Goodput of many shapes at once: the same values as of each one by itself."""

import numpy as np
import pytest

from benchmarks.reproductions.goodput_tables import best_goodputs, candidate_step_times, stacked
from scheduling.core.performance.goodput import BatchLimits, Noise, Throughput, best_batch

MODEL = Throughput(0.02, 0.001, 0.05, 0.002, 0.01, 0.0005, 1.6)
LIMITS = BatchLimits(initial=32, largest=1024, local_min=8, local_max=128)
SHAPES = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))


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


def test_a_batch_per_device_out_of_bounds_is_worth_nothing():
    fixed = BatchLimits(initial=32, largest=64, local_min=16, local_max=32, fixed=True)
    table = stacked(fixed, (16,))

    times = candidate_step_times([MODEL], [table], [((4, 16),)])
    values = best_goodputs(list(times), [table], [Noise(1, 1)])

    assert [row.tolist() for row in values] == [[0.0]]
