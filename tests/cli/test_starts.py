"""The command line says when a job starts in the words of the pages."""

import math
from datetime import UTC, datetime

import pytest

from portal.web.components import words
from tessera.cli.starts import in_words

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("p10", "p90", "is_open"),
    [
        (0, 0, False), (5, 5, False), (50, 70, False), (60, 120, False), (100, 4000, False),
        (960, 1980, False), (10_200, 12_660, False), (59_400, 73_440, False),
        (39_600, 43_300, False), (600, 500_000, False), (90_000, 400_000, False),
        (0, 0, True), (5, 0, True), (3_360, 0, True), (59_400, 0, True), (300_000, 0, True),
    ],
)  # fmt: skip
def test_pages_and_command_line_say_one_range_alike(p10: int, p90: int, is_open: bool) -> None:
    latest = 1_209_600 if is_open else p90
    said = in_words({"p10": p10, "p90": latest, "open": is_open}, NOON)

    pages = words.estimate(p10, math.inf if is_open else p90, NOON)
    assert said == pages.replace(words.NO_BREAK, " ")
