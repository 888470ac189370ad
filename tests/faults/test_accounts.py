"""Reads logs of proving jobs: which lines are missing, and whether the log reports it."""

import pytest

from tests.faults.accounts import read_log

GAP = "[tessera] the log writer ended unexpectedly: up to 64 KiB of output are missing here"


def log(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_a_whole_log_has_all_numbers() -> None:
    found = read_log(log("line 0", "line 1", "line 2"), 3)

    assert (found.numbers, found.lost, found.wrong) == ([0, 1, 2], set(), [])


@pytest.mark.parametrize(
    "lines", [("line 0", "line 2"), ("line 0", "line 1", "line 1"), ("line 1", "line 0")]
)
def test_lines_that_are_missing_doubled_or_moved_without_a_mark_are_wrong(
    lines: tuple[str, ...],
) -> None:
    assert read_log(log(*lines), 3).wrong


def test_lines_that_are_missing_at_a_mark_are_lost() -> None:
    found = read_log(log("line 0", GAP, "line 3"), 4)

    assert (found.numbers, found.lost, found.wrong, found.marks) == ([0, 3], {1, 2}, [], 1)


def test_a_mark_excuses_one_gap() -> None:
    assert read_log(log("line 0", GAP, "line 3", "line 5"), 6).wrong


def test_a_mark_excuses_no_doubled_line() -> None:
    assert read_log(log("line 0", "line 1", GAP, "line 1"), 2).wrong


def test_a_mark_without_a_gap_loses_nothing() -> None:
    found = read_log(log("line 0", GAP, "line 1"), 2)

    assert (found.numbers, found.lost, found.wrong) == ([0, 1], set(), [])


def test_a_line_that_is_cut_short_before_a_mark_is_lost() -> None:
    whole = [f"line {number}" for number in range(12)]

    found = read_log(log(*whole, "line 1", GAP, "line 14"), 15)

    assert (found.numbers, found.lost, found.wrong) == ([*range(12), 14], {12, 13}, [])


def test_lines_behind_the_last_mark_are_lost() -> None:
    assert read_log(log("line 0", GAP), 3).lost == {1, 2}
    assert read_log(log("line 0"), 3).lost == set()
