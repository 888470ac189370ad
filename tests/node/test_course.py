"""When signals are due, on a clock that the test moves."""

import math
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.course import Course, age_of_end, failure_of

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def test_a_job_that_reports_nothing_gets_term_at_once_and_kill_after_grace() -> None:
    course = Course()

    course.order(10.0, "stopped", "user", 5.0, listens=False)

    assert course.due(10.0) == TERM
    assert course.due(14.9) is None
    assert course.due(15.0) == KILL
    assert course.due(15.5) is None
    assert course.due(16.0) == KILL


def test_a_job_that_listens_gets_term_after_grace_and_kill_a_little_later() -> None:
    course = Course()

    course.order(10.0, "stopped", "preempted", 30.0, listens=True)

    assert course.due(39.9) is None
    assert course.due(40.0) == TERM
    assert course.due(44.9) is None
    assert course.due(45.0) == KILL


def test_a_guest_that_listens_is_killed_when_its_grace_is_over() -> None:
    course = Course()

    course.order(10.0, "stopped", "preempted", 5.0, listens=True, is_guest=True)

    assert course.due(13.9) is None
    assert course.due(14.0) == TERM
    assert course.due(14.9) is None
    assert course.due(15.0) == KILL


def test_the_first_cause_stands() -> None:
    course = Course()

    assert course.order(1.0, "timeout", "timeout", 5.0, listens=False) is True
    assert course.order(2.0, "stopped", "user", 5.0, listens=False) is False

    assert (course.cause, course.notice) == ("timeout", "timeout")


def test_no_grace_means_kill_at_once() -> None:
    course = Course()

    course.order(1.0, "stopped", "user", 0.0, listens=True)

    assert course.due(1.0) == KILL


def test_the_running_time_is_over_once() -> None:
    course = Course(timeout_at=7.0)

    assert course.next_at() == 7.0
    assert not course.timed_out(6.9)
    assert course.timed_out(7.0)
    course.order(7.0, "timeout", "timeout", 1.0, listens=False)
    assert not course.timed_out(8.0)


@given(
    orders=st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=1, max_size=6
    )
)
def test_further_orders_never_give_more_time(orders: list[tuple[int, int, bool]]) -> None:
    course = Course()
    now, last = 0.0, math.inf
    for wait, grace, listens in orders:
        now += wait
        course.order(now, "stopped", "user", float(grace), listens=listens)
        assert course.kill_at <= last
        last = course.kill_at
        assert course.kill_at <= now + grace + 5
        assert course.next_at() <= course.kill_at


def test_classes_of_failure() -> None:
    assert failure_of("exited", 0) == ""
    assert failure_of("exited", 1) == failure_of("exited", None) == "user"
    assert failure_of("stopped", 0) == ""
    assert failure_of("oom", None) == "resource-limit"
    assert failure_of("lease-expired", None) == "platform"


@pytest.mark.parametrize(
    ("reported", "age"),
    [(7.0, 3.0), (2.0, 8.0), (10.0, 0.0), (1.0, 8.0), (0.0, 8.0), (-1e9, 8.0), (11.0, 0.0)],
)
def test_a_reported_end_lies_between_the_start_and_now(reported: float, age: float) -> None:
    assert age_of_end(reported, started=2.0, now=10.0) == age
