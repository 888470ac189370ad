"""The comparison that decides on the default policy of a new virtual cluster."""

from dataclasses import replace

import pytest

from benchmarks.default_policy import TOLERANCE, TraceComparison, compare, entries
from scheduling.core.workloads.traces import TraceJob

SAME = {"mean": 1.0, "p99": 1.0, "fairness": 1.0}


def trace_jobs(count: int) -> list[TraceJob]:
    return [
        TraceJob(
            name=f"job-{number}",
            submitted=60.0 * number,
            devices=(1, 2, 8)[number % 3],
            duration=600.0 + 30.0 * number,
            user="1",
        )
        for number in range(count)
    ]


def comparison(**ratios: float) -> TraceComparison:
    return TraceComparison(
        trace="made", jobs=10, devices=8, ratios={**SAME, **ratios}, seconds=1.0
    )


def test_without_contention_both_policies_are_equal() -> None:
    found = compare("made", trace_jobs(6), 8)

    assert found.devices == 64
    assert found.ratios["mean"] == pytest.approx(1.0, abs=1e-3)
    assert found.passes


def test_under_contention_all_jobs_end_under_both_policies() -> None:
    found = compare("made", trace_jobs(30), 1)

    assert found.jobs == 30
    assert all(ratio > 0.0 for ratio in found.ratios.values())
    assert found.ratios["mean"] != 1.0


@pytest.mark.parametrize("name", ["mean", "p99", "fairness"])
def test_one_worse_figure_is_enough_to_fail(name: str) -> None:
    assert comparison(**{name: TOLERANCE}).passes
    assert not comparison(**{name: TOLERANCE + 0.001}).passes


def test_the_entries_name_the_worst_trace_of_each_figure() -> None:
    worse = replace(comparison(p99=1.4), trace="other")

    rows = {row["name"]: row for row in entries([comparison(), worse])}

    assert rows["default_policy.passed"]["value"] == 50.0
    assert rows["default_policy.worst_p99"]["value"] == 1.4
    assert "on other" in rows["default_policy.worst_p99"]["context"]
