"""Moments in the spellings of both databases."""

from datetime import UTC, datetime

import pytest

from scheduling.common.timestamps import moment_of, seconds_of


@pytest.mark.parametrize(
    "stored",
    ["2026-03-01 09:30:00.25", "2026-03-01 09:30:00.25+00", "2026-03-01 10:30:00.25+01"],
)
def test_a_moment_is_the_same_however_a_database_spells_it(stored: str) -> None:
    moment = datetime(2026, 3, 1, 9, 30, 0, 250_000, tzinfo=UTC)

    assert moment_of(stored) == moment
    assert seconds_of(stored) == moment.timestamp()
