"""Later submissions: their rate, their times, and equal draws for equal seeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.forecast.arrivals import (
    MOST_ARRIVALS,
    LaterJobs,
    PastSubmission,
    RecentSubmissions,
    draw_later_jobs,
    drawn_futures,
)
from scheduling.core.forecast.durations import RunTime, RunTimes
from tests.factories.rounds import NOW, cluster_snapshot, queued_job

HOUR = 3600.0
TIMES = RunTimes([RunTime(lineage=("a",), seconds=600.0)] * 30)


def recent(number: int, *, ahead: float = 2 * HOUR) -> RecentSubmissions:
    return RecentSubmissions(
        jobs=[
            PastSubmission(job=queued_job(1 + place, 1 + place % 3), lineage=("a",))
            for place in range(number)
        ],
        seconds=HOUR,
        ahead=ahead,
    )


def draw(found: RecentSubmissions, *, future: int = 0, seed: int = 1) -> LaterJobs:
    return draw_later_jobs(found, TIMES, now=NOW, first_id=1000, future=future, seed=seed)


@given(st.integers(0, 30), st.floats(0.0, 5 * HOUR), st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_later_jobs_are_copies_in_order_of_their_times(
    number: int, ahead: float, future: int, seed: int
) -> None:
    source = recent(number, ahead=ahead)

    later = draw(source, future=future, seed=seed)

    assert [job.id for job in later.jobs] == list(range(1000, 1000 + len(later.jobs)))
    times = [job.submitted for job in later.jobs]
    assert times == sorted(times)
    assert all(NOW <= at <= NOW + ahead for at in times)
    demands = {one.job.demand for one in source.jobs}
    assert {job.demand for job in later.jobs} <= demands
    assert set(later.run_seconds) == {job.id for job in later.jobs}
    assert all(seconds >= 1.0 for seconds in later.run_seconds.values())
    assert draw(source, future=future, seed=seed) == later


def test_the_mean_number_has_the_rate_of_the_recent_span() -> None:
    numbers = [len(draw(recent(20), future=future).jobs) for future in range(400)]

    # Mean 40, standard error 0.32.
    assert sum(numbers) / len(numbers) == pytest.approx(40, abs=1.5)


def test_a_high_rate_shortens_the_span_and_stays() -> None:
    many = recent(3000, ahead=10 * HOUR)

    later = draw(many)

    assert len(later.jobs) == pytest.approx(MOST_ARRIVALS, rel=0.1)
    last = later.jobs[-1].submitted - NOW
    assert last == pytest.approx(MOST_ARRIVALS / 3000 * HOUR, rel=0.05)


def test_each_future_has_other_later_jobs_and_the_same_ones_each_time() -> None:
    snapshot = cluster_snapshot(queued_job(7, 1))
    future_of = drawn_futures(snapshot, TIMES, {}, recent(20), futures=3, seed=1)

    first, second = future_of(0), future_of(1)

    assert first.later != second.later
    assert future_of(0) is first
    assert min(job.id for job in first.later.jobs) == 8
    job = first.later.jobs[0]
    assert first.remaining(job.id) == first.later.run_seconds[job.id]
    assert first.remaining(7) == first.left(7)
