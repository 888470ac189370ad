"""Ranges that learn from their errors, so that in the long run the right share lies inside."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.forecast.calibration import (
    NEAREST,
    WIDEST,
    Calibration,
    PastEstimate,
    learn,
)
from scheduling.core.forecast.usual import Quantiles

SAID = (50.0, 100.0, 200.0)


def told_one_after_another(waits: list[float], said: Quantiles = SAID) -> list[PastEstimate]:
    """Each estimate is made when the one before it has come true."""
    found, at = [], 0.0
    for wait in waits:
        found.append(PastEstimate(quantiles=said, wait=wait, made=at))
        at += wait + 1.0
    return found


def shown_one_after_another(past: list[PastEstimate]) -> list[Quantiles]:
    """What would have been shown each time."""
    lessons, found = Calibration(), []
    for number, told in enumerate(past):
        assert told.quantiles is not None
        found.append(lessons.mend(told.quantiles, now=told.made))
        lessons.keep(number, told)
        lessons.close(number, now=told.made + told.wait)
    return found


def crowd(*, waits: float, each: int) -> tuple[Calibration, float]:
    """As many estimates at once, whose jobs start one after another; and the time after that."""
    lessons = Calibration()
    for number in range(each):
        lessons.keep(number, PastEstimate(quantiles=SAID, wait=0.0))
    for number in range(each):
        lessons.close(number, now=waits + 60.0 * number)
    return lessons, waits + 60.0 * each


def test_without_any_past_nothing_is_mended() -> None:
    shown = learn([], now=0.0).mend(SAID, now=0.0)

    assert shown == pytest.approx(SAID)


def test_no_past_makes_a_range_begin_before_a_job_may_start() -> None:
    lessons = learn(told_one_after_another([1.0] * 100), now=1e6)
    said = (7200.0, 7300.0, 9000.0)

    freely = lessons.mend(said, now=1e6)
    bound = lessons.mend(said, now=1e6, soonest=7200.0)

    assert freely[0] < 7200.0
    assert bound == tuple(max(7200.0, seconds) for seconds in freely)


def test_ranges_that_were_too_early_move_to_the_truth() -> None:
    past = told_one_after_another([1000.0] * 100)

    p10, p50, p90 = learn(past, now=1e6).mend(SAID, now=1e6)

    assert p10 <= p50 <= p90
    assert 500.0 < p50 < 2000.0
    assert p90 >= 999.0


def test_ranges_that_were_too_wide_become_narrower() -> None:
    wide = (1.0, 100.0, 100_000.0)
    past = told_one_after_another([90.0, 100.0, 110.0] * 60, wide)

    p10, _p50, p90 = learn(past, now=1e6).mend(wide, now=1e6)

    assert p10 > 10.0
    assert p90 < 10_000.0


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    wrong=st.sampled_from([0.3, 1.0, 3.0]),
    spread=st.sampled_from([0.2, 1.0, 2.0]),
    change=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_the_right_share_lies_inside_however_wrong_the_futures_are(
    seed: int, wrong: float, spread: float, change: float
) -> None:
    lots = np.random.default_rng(seed)
    waits = 3600.0 * np.exp(spread * lots.normal(size=240))
    waits[120:] *= change
    said = (0.5 * 3600.0 * wrong, 3600.0 * wrong, 2.0 * 3600.0 * wrong)

    shown = shown_one_after_another(told_one_after_another(waits.tolist(), said))

    inside = [p10 <= wait <= p90 for (p10, _, p90), wait in zip(shown, waits, strict=True)]
    assert 0.6 <= np.mean(inside[60:]) <= 0.95


@settings(max_examples=25, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=25),
    said=st.tuples(*[st.floats(0.0, 1e6)] * 3),
    waited=st.floats(0.0, 1e5),
)
def test_what_is_shown_is_in_order_and_not_negative(
    spans: list[tuple[int, int]], said: Quantiles, waited: float
) -> None:
    at, past = 0.0, []
    for gap, wait in spans:
        at += 1000.0 * gap
        past.append(PastEstimate(quantiles=SAID, wait=500.0 * wait, started=wait != 3, made=at))

    p10, p50, p90 = learn(past, now=at + 2000.0).mend(said, now=at + 2000.0, waited=waited)

    assert 0.0 <= p10 <= p50 <= p90 < math.inf


def test_jobs_that_still_wait_count_as_late() -> None:
    early = told_one_after_another([90.0] * 60)
    at = early[-1].made + 100.0
    open_ones = [
        PastEstimate(quantiles=SAID, wait=5000.0, started=False, made=at + number)
        for number in range(20)
    ]
    now = at + 5000.0

    with_open = learn(early + open_ones, now=now)
    without = learn(early, now=now)

    for lessons in (with_open, without):
        lessons.mend(SAID, now=now)
    assert with_open.stretch[1] > without.stretch[1]


def test_nothing_counts_before_it_was_known() -> None:
    past = told_one_after_another([1000.0] * 20)
    now = past[10].made + 1.0
    known = [
        PastEstimate(
            quantiles=told.quantiles,
            wait=min(told.wait, now - told.made),
            started=told.made + told.wait <= now,
            made=told.made,
        )
        for told in past[:11]
    ]

    peeking = Calibration()
    for number, told in enumerate(past[:11]):
        peeking.keep(number, told)
        if told.made + told.wait <= now:
            peeking.close(number, now=told.made + told.wait)

    assert learn(known, now=now).mend(SAID, now=now) == peeking.mend(SAID, now=now)


def test_futures_that_are_far_off_carry_a_third_of_the_answer() -> None:
    lessons, now = crowd(waits=3600.0, each=20)

    far, farther = (lessons.mend((says, says, says), now=now)[1] for says in (1e7, 1e10))

    assert farther / far == pytest.approx(10.0, rel=0.05)


def test_many_errors_at_once_teach_less_than_as_many_one_by_one() -> None:
    together, at = crowd(waits=36_000.0, each=20)
    alone = learn(told_one_after_another([36_000.0] * 20), now=1e8)

    assert together.usual_miss == 0.0
    assert alone.usual_miss > 1.0
    assert together.mend(SAID, now=at)[1] < alone.mend(SAID, now=1e8)[1]


@settings(max_examples=40, deadline=None)
@given(
    waits=st.lists(st.floats(0.0, 1e5), max_size=20),
    said=st.tuples(*[st.floats(0.0, 1e6)] * 3).map(sorted),
    later=st.floats(0.0, 1e5),
)
def test_where_the_futures_come_later_no_middle_comes_earlier(
    waits: list[float], said: list[float], later: float
) -> None:
    lessons = learn(told_one_after_another(waits), now=1e8)

    before = lessons.mend((said[0], said[1], said[2]), now=1e8)
    after = lessons.mend((said[0] + later, said[1] + later, said[2] + later), now=1e8)

    assert after[1] >= before[1] * (1.0 - 1e-9)
    assert lessons.mend((said[0], said[1], said[2]), now=1e8) == before


def test_who_stands_behind_more_devices_waits_longer() -> None:
    lessons, now = crowd(waits=3600.0, each=20)

    small, large = (lessons.mend((60.0, 100.0, 9e4), now=now, devices=n) for n in (1, 16))

    assert large[1] > small[1]


def test_a_job_does_not_stand_before_itself() -> None:
    said = (60.0, 100.0, 9e4)
    lessons, now = crowd(waits=3600.0, each=20)
    lessons.keep(99, PastEstimate(quantiles=said, wait=0.0, made=now, devices=8, job=7))

    mine = lessons.mend(said, now=now, devices=8, job=7)
    other = lessons.mend(said, now=now, devices=8)

    assert mine[1] < other[1]


def test_ends_are_stretched_no_farther_than_allowed() -> None:
    late = learn(told_one_after_another([1e5] * 60), now=1e8)
    inside = learn(told_one_after_another([100.0] * 140), now=1e8)

    assert late.stretch[1] == WIDEST
    assert inside.stretch == [NEAREST, NEAREST]


def test_a_job_that_has_waited_is_compared_with_those_that_waited_as_long() -> None:
    past = told_one_after_another([60.0] * 20 + [3600.0] * 20)
    lessons = learn(past, now=1e6)

    fresh = lessons.mend(SAID, now=1e6)
    old = lessons.mend(SAID, now=1e6, waited=1800.0)

    assert old[0] > fresh[0]


def test_past_waits_replace_futures_only_after_enough_of_them():
    lessons = Calibration()
    for number in range(4):
        told = PastEstimate(quantiles=(1.0, 2.0, 3.0), wait=0.0, made=100.0 * number)
        lessons.keep(number, told)
        lessons.close(number, now=100.0 * number + 600.0)
    before = lessons.from_waits(now=2000.0)
    lessons.keep(9, PastEstimate(quantiles=(1.0, 2.0, 3.0), wait=0.0, made=1400.0))
    lessons.close(9, now=2000.0)

    found = lessons.from_waits(now=2000.0)
    late = lessons.from_waits(now=2000.0, soonest=5000.0)

    assert before is None
    assert found is not None
    assert found[0] <= found[1] <= found[2]
    assert 300.0 < found[1] < 900.0
    assert late == (5000.0, 5000.0, 5000.0)


@given(
    st.lists(st.floats(0.0, 1e6), min_size=5, max_size=30),
    st.floats(0.0, 1e6),
    st.integers(1, 64),
)
def test_an_estimate_from_past_waits_is_ordered_and_finite(waits, waited, devices):
    lessons = Calibration()
    for number in range(len(waits)):
        lessons.keep(number, PastEstimate(quantiles=(1.0, 2.0, 3.0), wait=0.0, made=0.0))
    for number, wait in enumerate(sorted(waits)):
        lessons.close(number, now=wait)

    found = lessons.from_waits(now=2e6, waited=waited, devices=devices)

    assert found is not None
    assert found == tuple(sorted(found))
    assert all(math.isfinite(seconds) and seconds >= 0.0 for seconds in found)


def test_waits_of_jobs_without_an_estimate_give_the_next_jobs_one() -> None:
    lessons = Calibration()
    for number in range(6):
        assert (lessons.from_waits(now=10.0 * number) is not None) is (number >= 5)
        lessons.keep(number, PastEstimate(quantiles=None, wait=0.0, made=10.0 * number))
        lessons.close(number, now=10.0 * number + 5.0)

    assert lessons.stretch == [1.0, 1.0]
    assert lessons.usual_miss == 0.0


def test_a_job_without_an_estimate_never_counts_as_late() -> None:
    lessons = Calibration()
    lessons.keep(1, PastEstimate(quantiles=None, wait=0.0))

    lessons.mend(SAID, now=1e9)

    assert lessons.stretch == [1.0, 1.0]


@pytest.mark.parametrize(("share", "prefers"), [(0.4, True), (0.7, False)])
def test_usual_waits_are_preferred_only_if_they_were_much_closer(
    share: float, prefers: bool
) -> None:
    lessons = Calibration()
    lessons._losses.extend([(100.0, 100.0 * share)] * 20)

    assert lessons.prefers_waits is prefers


def test_the_comparison_with_usual_waits_forgets() -> None:
    lessons = Calibration()
    lessons._losses.extend([(1000.0, 1.0)] * 20 + [(1.0, 100.0)] * 100)

    assert not lessons.prefers_waits
