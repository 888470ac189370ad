"""Ratios in pairs and what a report draws, on numbers that are worked out by hand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.simulation.comparing import METRICS, ComparisonRun, compare, ratio, t_interval
from scheduling.core.simulation.recorder import HoldSpan, Recorder
from scheduling.core.workloads.traces import SimulationError


def run(policy, workload, seconds, seed=0, **figures):
    document: dict[str, Any] = dict.fromkeys(METRICS, 1.0)
    document |= {"avg_jct_h": sum(seconds) / len(seconds) / 3600.0, **figures}
    document |= dict.fromkeys(("jobs", "completed", "censored", "refused", "failures"), 1)
    document["per_job"] = [{"submit_s": 0.0, "finish_s": value} for value in seconds]
    return ComparisonRun(policy=policy, workload=workload, seed=seed, document=document)


def test_ratios_are_taken_in_pairs_of_one_workload_and_seed():
    runs = [
        run("a", "w1", [100.0]),
        run("a", "w2", [1000.0]),
        run("b", "w2", [4000.0]),
        run("b", "w1", [100.0]),
        run("b", "w3", [7.0]),
    ]

    found = ratio(runs, "b", "a", "avg_jct_h")

    assert found is not None
    assert found.mean == pytest.approx(2.5)
    assert found.geometric == pytest.approx(2.0)
    assert (found.pairs, found.method) == (2, "t")
    # The logarithms are 0 and log 4: their half width is 12.706 standard errors of log 2.
    assert found.high == pytest.approx(math.exp(math.log(2) * (1 + 12.7062)), rel=1e-3)
    assert found.low == pytest.approx(math.exp(math.log(2) * (1 - 12.7062)), rel=1e-3)


def test_one_pair_is_resampled_over_its_jobs_and_always_the_same_way():
    one = run("a", "w", [100.0, 200.0, 300.0, 400.0])
    other = run("b", "w", [150.0, 220.0, 250.0, 300.0])

    found = ratio([one, other], "b", "a", "avg_jct_h")

    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.method == "bootstrap"
    assert found.geometric == pytest.approx(0.92)
    assert 0.75 < found.low < found.geometric < found.high < 1.5
    assert found == ratio([other, one], "b", "a", "avg_jct_h")


def test_without_both_figures_there_is_no_ratio():
    runs = [run("a", "w", [1.0], worst_ftf=None), run("b", "w", [1.0])]

    assert ratio(runs, "b", "a", "worst_ftf") is None
    makespan = ratio(runs, "b", "a", "makespan_h")
    assert makespan is not None
    assert makespan.method == ""
    assert t_interval([1.0]) == (None, None)


def test_the_baseline_must_be_one_of_the_policies():
    with pytest.raises(SimulationError, match="the baseline 'c' is not one of a"):
        compare([run("a", "w", [1.0])], "c")


@given(values=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=9))
def test_a_mean_lies_inside_its_interval(values):
    low, high = t_interval(values)

    assert low <= sum(values) / len(values) + 1e-9
    assert high >= sum(values) / len(values) - 1e-9


def state(time, active, busy, **jobs):
    return {"time_s": time, "active": active, "gpus_busy": busy, "jobs": jobs}


def test_what_is_held_is_recorded_from_change_to_change():
    recorder = Recorder()
    recorder(state(0.0, 2, 2, one={"a": 2}))
    recorder(state(5.0, 2, 3, one={"a": 2}, two={"a": 1}))
    recorder(state(9.0, 2, 5, one={"a": 1, "b": 3}, two={"a": 1}))
    recorder(state(12.0, 1, 1, two={"a": 1}))
    recorder.close({"one": 11.0, "two": None}, 20.0)

    assert recorder.spans == [
        HoldSpan(job="one", start=0.0, end=9.0, kind="a", devices=2),
        HoldSpan(job="two", start=5.0, end=20.0, kind="a", devices=1),
        HoldSpan(job="one", start=9.0, end=11.0, kind="a+b", devices=4),
    ]
    assert recorder.points == [(0.0, 1, 2), (5.0, 0, 3), (9.0, 0, 5), (12.0, 0, 1), (20.0, 0, 0)]


def test_shapes_on_nodes_are_recorded_as_devices_and_nothing_held_as_waiting():
    recorder = Recorder()
    held = {"type": "t4", "placement": [4, 2]}
    recorder(state(60.0, 2, 6, one=held, two={"type": None, "placement": []}))
    recorder.close({}, 120.0)

    assert recorder.spans == [HoldSpan(job="one", start=60.0, end=120.0, kind="t4", devices=6)]
    assert recorder.points[0] == (60.0, 1, 6)


def test_a_long_course_is_thinned_and_only_the_first_jobs_are_drawn():
    recorder = Recorder(most_jobs=2, most_spans=3)
    for time in range(10_000):
        recorder(state(float(time), 1, 1, **{f"job-{time}": {"a": 1}}))
    recorder.close({}, 10_000.0)

    assert len(recorder.points) <= 1_300
    times = [time for time, _waiting, _busy in recorder.points]
    assert times == sorted(times)
    assert {span.job for span in recorder.spans} == {"job-0", "job-1"}
