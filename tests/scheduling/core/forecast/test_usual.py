"""What others waited, and how long those have waited that still wait."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.forecast.usual import DRAINS, LEAST, drained_waits, present_waits, usual_waits

SECONDS = st.floats(0.0, 1e6)
WAITS = st.lists(SECONDS, min_size=LEAST, max_size=80)


@settings(max_examples=60, deadline=None)
@given(over=WAITS, going_on=st.lists(SECONDS, max_size=40), waited=SECONDS)
def test_quantiles_are_in_order_and_no_longer_than_the_longest(
    over: list[float], going_on: list[float], waited: float
) -> None:
    found = present_waits(over, going_on, waited)

    assert found is not None
    assert list(found) == sorted(found)
    assert found[0] >= 0.0
    assert found[-1] <= max(*over, *going_on)


@settings(max_examples=40, deadline=None)
@given(over=st.lists(st.integers(0, 3).map(float), max_size=LEAST - 1), going_on=WAITS)
def test_too_few_waits_that_are_over_tell_nothing(
    over: list[float], going_on: list[float]
) -> None:
    assert present_waits(over, going_on, 0.0) is None
    assert usual_waits(sorted(over), 0.0) is None


@settings(max_examples=40, deadline=None)
@given(over=WAITS, longest=st.integers(1, 20))
def test_jobs_that_go_on_waiting_never_make_waits_shorter(over: list[float], longest: int) -> None:
    without = present_waits(over, [], 0.0)
    beyond = present_waits(over, [max(over) + 1.0] * longest, 0.0)

    assert without is not None
    assert beyond is not None
    assert all(late >= early - 1e-6 for early, late in zip(without, beyond, strict=True))


def test_jobs_that_go_on_waiting_count_as_far_as_they_have_come() -> None:
    found = present_waits([100.0] * 20, [5000.0] * 20, 0.0)

    assert found is not None
    assert found[1] > 1000.0
    assert found[2] > 4000.0


def test_the_newest_waits_count_most() -> None:
    growing = present_waits([100.0] * 40 + [5000.0] * 20, [], 0.0)
    falling = present_waits([5000.0] * 40 + [100.0] * 20, [], 0.0)

    assert growing is not None
    assert falling is not None
    assert growing[1] > 4000.0
    assert falling[1] < 200.0


def test_a_share_that_is_counted_by_hand() -> None:
    # Of five waits as good as equal in weight the middle one is at a half.
    found = usual_waits([100.0, 200.0, 300.0, 400.0, 500.0], 0.0)

    assert found == pytest.approx((140.0, 300.0, 460.0))


def test_who_has_waited_is_compared_with_those_that_waited_longer() -> None:
    over = [60.0] * 20 + [3600.0] * 20

    fresh = present_waits(over, [], 0.0)
    old = present_waits(over, [], 1800.0)

    assert fresh is not None
    assert old is not None
    assert old[1] == pytest.approx(900.0, rel=1.0)
    assert old[2] <= 1800.0


def test_a_queue_drains_as_fast_as_it_did() -> None:
    # Two devices were given out every minute: eight in the last four minutes, and one minute more
    # until the next start.
    given = [(60.0 * number, 2) for number in range(20)]

    found = drained_waits(given, 8, now=20 * 60.0, began=0.0)

    assert found == pytest.approx([part * 300.0 for part in DRAINS])


def test_the_time_is_stretched_where_fewer_devices_were_given_out() -> None:
    given = [(60.0 * number, 1) for number in range(5)]

    found = drained_waits(given, 50, now=300.0, began=-300.0)

    assert found == pytest.approx([part * 6000.0 for part in DRAINS])
    assert drained_waits(given[:-1], 50, now=300.0, began=0.0) is None


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(st.tuples(st.floats(0.0, 1e5), st.integers(1, 64)), min_size=LEAST, max_size=40),
    needed=st.integers(1, 500),
    more=st.integers(0, 100),
)
def test_who_needs_more_waits_no_shorter(
    gaps: list[tuple[float, int]], needed: int, more: int
) -> None:
    at, given = 0.0, []
    for gap, devices in gaps:
        at += gap
        given.append((at, devices))

    less = drained_waits(given, needed, now=at, began=0.0)
    many = drained_waits(given, needed + more, now=at, began=0.0)

    assert less is not None
    assert many is not None
    assert list(less) == sorted(less)
    assert all(late >= early - 1e-6 for early, late in zip(less, many, strict=True))
