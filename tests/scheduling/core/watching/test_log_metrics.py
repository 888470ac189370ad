"""Metrics in logs: numbers and steps, pieces cut anywhere, patterns that are refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.watching.log_metrics import (
    MOST_AT_ONCE,
    LogMetric,
    LogNumber,
    NumberPattern,
    NumberScanner,
)
from scheduling.core.watching.log_rules import PatternError

LOSS = LogMetric(name="loss", pattern=r"step (?P<step>[\d,]+).* loss=([-+.\deEnaif]+)")
RATE = LogMetric(name="rate", pattern=r"lr (\S+)")
LOG = (
    b"step 1: loss=2.5\nnothing\nlr 1e-3\r\nstep 1,200: x loss=nan\nlr 5\n"
    b"lr -\xff7\nlast step 9 loss=1"
)


def scanner(*metrics: LogMetric, seconds: float = 0.0) -> NumberScanner:
    ticks = iter(range(1_000_000))
    found = [(metric, NumberPattern(metric.pattern)) for metric in metrics]
    return NumberScanner(found, clock=lambda: next(ticks) * seconds)


@given(st.lists(st.integers(0, len(LOG)), max_size=6).map(sorted))
def test_numbers_are_found_wherever_the_log_is_cut(cuts: list[int]) -> None:
    reading = scanner(LOSS, RATE)
    edges = [0, *cuts, len(LOG)]

    found = [one for start, end in pairwise(edges) for one in reading.feed(LOG[start:end], start)]
    found += reading.finish()

    losses = [(one.step, str(one.value)) for one in found if one.name == "loss"]
    assert losses == [(1, "2.5"), (1200, "nan"), (9, "1.0")]
    assert [one.value for one in found if one.name == "rate"] == [1e-3, 5.0]


def test_a_number_without_a_step_has_the_newest_step_or_a_count() -> None:
    counted = scanner(RATE).feed(b"lr 1\nlr 2\n", 0)
    stepped = scanner(RATE, LOSS).feed(b"lr 1 step 7 loss=1\nlr 2\nstep 8 loss=3\n", 0)

    assert counted == (LogNumber("rate", 1, 1.0), LogNumber("rate", 2, 2.0))
    assert [(one.name, one.step) for one in stepped] == [
        ("loss", 7), ("rate", 7), ("rate", 7), ("loss", 8),
    ]  # fmt: skip


def test_a_slow_pattern_is_given_up() -> None:
    reading = scanner(RATE, seconds=10.0)

    assert len(reading.feed(b"lr 1\n", 0)) == 1
    assert reading.feed(b"lr 1\n", 5) == ()


def test_numbers_of_one_piece_are_limited() -> None:
    assert len(scanner(RATE).feed(b"lr 1\n" * (MOST_AT_ONCE + 9), 0)) == MOST_AT_ONCE


@pytest.mark.parametrize(
    "text", ["loss", "(?P<step>x)", "(?:x)", "((", "(a){1000}{1000}", "(?=x)(y)"]
)
def test_a_pattern_without_a_number_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        NumberPattern(text)
