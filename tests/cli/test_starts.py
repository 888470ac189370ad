"""The command line says when a job starts in the words of the pages."""

import math
import time
from datetime import UTC, datetime

import pytest

from portal.web.components import words
from tessera.cli.jobs import in_words

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
    said = in_words({"p10": p10, "p90": latest, "open": is_open}, NOON, utc=True)

    pages = words.estimate(p10, math.inf if is_open else p90, NOON)
    # A page names its zone once; the command line names it with each time of the day.
    zone = " UTC" if ":" in said else ""
    assert said == pages.replace(words.NO_BREAK, " ") + zone


def test_times_of_the_day_are_in_the_local_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        said = in_words({"p10": 39_600, "p90": 43_300}, NOON)
        at = in_words({"p10": 0, "p90": 3_600, "gate": 3_600}, NOON)
    finally:
        monkeypatch.undo()
        time.tzset()

    assert said == "tomorrow 07:00 – 08:30 CST"
    assert at == "at 21:00 CST"
