"""The words of numbers, durations and estimates are those of the design."""

import math
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.web.components import words

NOW = datetime(2025, 11, 14, 9, 31, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = 60, 3600, 86_400


def plain(text: str) -> str:
    return text.replace(words.NO_BREAK, " ")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.00004, "40 µs"),
        (0.0042, "4.20 ms"),
        (0.01, "0.01 s"),
        (0.42, "0.42 s"),
        (0.999, "1 s"),
        (42, "42 s"),
        (59.7, "1 min"),
        (3 * MINUTE + 20, "3 min 20 s"),
        (44 * MINUTE + 10, "44 min"),
        (5 * HOUR + 13 * MINUTE, "5 h 13 min"),
        (5 * HOUR + 7 * MINUTE, "5 h 07 min"),
        (3 * DAY + 4 * HOUR, "3 d 4 h"),
        (-5, "0 s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, said: str) -> None:
    assert plain(words.duration(seconds)) == said


@given(st.floats(0, 10 * 365 * DAY))
def test_a_duration_never_says_sixty_of_anything(seconds: float) -> None:
    said = plain(words.duration(seconds)).split()
    parts = list(zip(said[::2], said[1::2], strict=True))  # 0.60 s is six tenths, not sixty

    assert ("60", "s") not in parts
    assert ("60", "min") not in parts
    assert ("24", "h") not in parts


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (65.0, "65.0"),
        (99.94, "99.9"),
        (9120, "9,120"),
        (100.4, "100"),
        (99.97, "100"),
        (0.06, "0.1"),
    ],
)
def test_gpu_hours_have_one_decimal_below_a_hundred(number: float, said: str) -> None:
    assert words.gpu_hours(number) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [(0, "0 %"), (0.0003, "0 %"), (0.004, "0.4 %"), (0.675, "68 %"), (1, "100 %")],
)
def test_percent_is_whole_except_below_one(share: float, said: str) -> None:
    assert plain(words.percent(share)) == said
    assert words.NO_BREAK in words.percent(share)


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 B"), (999, "999 B"), (1200, "1.2 kB"), (999_960, "1.0 MB"), (1.2e9, "1.2 GB")],
)
def test_file_sizes_are_decimal(size: float, said: str) -> None:
    assert plain(words.file_size(size)) == said


def test_counts_are_grouped_and_devices_named_by_type() -> None:
    assert words.count(10412) == "10,412"
    assert words.devices(8, ["A100"]) == "8 × A100"
    assert words.devices(2, ["A100", "H100"]) == "2 × A100 or H100"
    assert words.devices(1) == "1 device"
    assert words.span(4, 16) == "4 – 16"
    assert words.span(4, 4) == "4"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (timedelta(seconds=12), "12 s ago"),
        (timedelta(minutes=4, seconds=50), "4 min ago"),
        (timedelta(hours=5, minutes=13), "5 h 13 min ago"),
        (timedelta(seconds=-90), "in 1 min"),
        (timedelta(0), "now"),
        (timedelta(days=2), "12 Nov 09:31"),
    ],
)
def test_moments_are_relative_for_a_day(before: timedelta, said: str) -> None:
    assert plain(words.ago(NOW - before, NOW)) == said


@pytest.mark.parametrize(
    ("p10", "p90", "said"),
    [
        (15 * MINUTE, 35 * MINUTE, "in 15 – 35 min"),
        (16 * MINUTE, 33 * MINUTE, "in 15 – 35 min"),
        (2 * HOUR + 50 * MINUTE, 3 * HOUR + 31 * MINUTE, "in 2 h 45 min – 3 h 45 min"),
        (50, 70, "in 50 s – 1 min 10 s"),
        (60, 120, "in 1 – 2 min"),
        (0, 0, "now"),
        (5, 5, "in 5 – 6 s"),
        (16.5 * HOUR, 20.4 * HOUR, "tomorrow 02:01 – 06:01"),
        (0, math.inf, "at any time"),
        (56 * MINUTE, math.inf, "in 55 min or later"),
        (16.5 * HOUR, math.inf, "tomorrow 02:01 or later"),
    ],
)
def test_estimates_are_ranges_rounded_outwards(p10: float, p90: float, said: str) -> None:
    assert plain(words.estimate(p10, p90, NOW)) == said


@given(st.floats(0, 11 * HOUR), st.floats(1, HOUR))
def test_an_estimate_is_never_one_bare_number(p10: float, width: float) -> None:
    said = words.estimate(p10, p10 + width, NOW)

    assert words.DASH in said


def test_days_of_a_report_are_named_by_day_and_month() -> None:
    first, last = date(2026, 11, 21), date(2026, 11, 27)

    assert words.date_span(first, last) == "21 Nov – 27 Nov"
    assert words.date_span(last, last) == "27 Nov"
