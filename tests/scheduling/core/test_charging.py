"""Conversion of a node's instants, their limits, and what is charged for a span."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.charging import (
    LATE,
    NodeClock,
    charged_seconds,
    compare_clocks,
    last_evidence,
    limited,
)

BEGIN = datetime(2026, 3, 31, 12, tzinfo=UTC)
INSTANTS = st.integers(-5, 5).map(lambda n: BEGIN + timedelta(seconds=n))
MAYBE = st.none() | INSTANTS
SECONDS = st.floats(-1e6, 1e6)


@given(
    offset=SECONDS,
    asked=st.floats(0, 1e6),
    out=st.floats(0, 30),
    back=st.floats(0, 30),
    since=st.floats(0, 1e6),
)
def test_the_age_of_an_instant_is_off_by_half_a_round_trip_at_most(
    offset: float, asked: float, out: float, back: float, since: float
) -> None:
    read = asked + out
    clock = compare_clocks(asked=asked, answered=read + back, node_time=read + offset)
    happened = read - since

    age = clock.age(happened + offset, observer_time=read + back)

    assert clock.error == pytest.approx((out + back) / 2)
    assert abs(age - (since + back)) <= clock.error + 1e-3


@given(at=MAYBE, earliest=MAYBE, latest=INSTANTS)
def test_a_reported_instant_is_never_before_its_start_nor_after_its_observation(
    at: datetime | None, earliest: datetime | None, latest: datetime
) -> None:
    found = limited(at, earliest=earliest, latest=latest)

    if earliest is None or earliest <= latest:
        assert found <= latest
    if earliest is not None:
        assert found >= earliest
    if at is not None and at <= latest and (earliest is None or at >= earliest):
        assert found == at


@given(started=MAYBE, exited=MAYBE, until=INSTANTS, since=MAYBE, middle=INSTANTS)
def test_a_span_that_is_cut_into_two_periods_is_charged_once(
    started: datetime | None,
    exited: datetime | None,
    until: datetime,
    since: datetime | None,
    middle: datetime,
) -> None:
    whole = charged_seconds(started, exited, until=until, since=since)
    if (since is None or since <= middle) and middle <= until:
        first = charged_seconds(started, exited, until=middle, since=since)
        rest = charged_seconds(started, exited, until=until, since=middle)
        assert first + rest == pytest.approx(whole)

    assert whole >= 0
    if started is None:
        assert whole == 0
    elif exited is not None:
        assert whole <= max(0.0, (exited - started).total_seconds())


def test_what_has_vanished_ran_until_its_last_confirmation() -> None:
    later = BEGIN + timedelta(seconds=20)

    assert last_evidence(BEGIN, [None, later]) == later
    assert last_evidence(later, [BEGIN, None]) == later
    assert last_evidence(None, [later]) is None


def test_a_clock_that_was_set_replaces_a_more_precise_comparison() -> None:
    known = NodeClock(ahead=100.0, error=0.01, compared=10.0)
    vague = NodeClock(ahead=100.5, error=1.0, compared=11.0)
    was_set = NodeClock(ahead=7300.0, error=1.0, compared=11.0)
    later = NodeClock(ahead=100.5, error=1.0, compared=1100.0)
    precise = NodeClock(ahead=100.005, error=0.001, compared=11.0)

    assert known.corrected(vague) is known
    assert known.corrected(was_set) is was_set
    assert known.corrected(later) is later
    assert known.corrected(precise) is precise


@given(ahead=SECONDS, under_way=st.floats(0, LATE), error=st.floats(0, 5))
def test_a_message_that_was_delayed_does_not_change_the_comparison(
    ahead: float, under_way: float, error: float
) -> None:
    known = NodeClock(ahead=ahead, error=error + 1e-6, compared=10.0)

    assert known.after_message(arrived=20.0, node_time=20.0 - under_way + ahead) is known


@given(ahead=SECONDS, jump=st.floats(5, 1e6), forwards=st.booleans())
def test_a_message_shows_that_a_clock_was_set(ahead: float, jump: float, forwards: bool) -> None:
    known = NodeClock(ahead=ahead, error=0.01, compared=10.0)
    jump = jump if forwards else -jump - LATE

    found = known.after_message(arrived=20.0, node_time=20.0 + ahead + jump)

    assert found.ahead == pytest.approx(ahead + jump)
    reply = compare_clocks(asked=25.0, answered=27.0, node_time=26.0 + ahead + jump)
    assert found.corrected(reply) is reply
