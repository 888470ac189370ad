"""The wait between two turns of the report writer."""

from workers.node_service.writer import (
    CROWD,
    GATHER_SECONDS,
    LEAST_GATHER_SECONDS,
    MOST_GATHER_SECONDS,
    gathering_seconds,
)


def test_with_few_reports_none_waits_for_others_however_slow_a_turn_was() -> None:
    assert gathering_seconds(CROWD - 1, 5.0) == GATHER_SECONDS


def test_with_few_reports_the_wait_is_as_long_as_the_turn_was() -> None:
    assert gathering_seconds(CROWD - 1, 0.006) == 0.006
    assert gathering_seconds(0, 0.0) == LEAST_GATHER_SECONDS


def test_under_load_half_of_the_time_is_left_to_gather() -> None:
    assert gathering_seconds(CROWD, 0.04) == 0.04
    assert gathering_seconds(CROWD, 0.0) == GATHER_SECONDS


def test_the_wait_never_exceeds_its_bound() -> None:
    assert gathering_seconds(500, 30.0) == MOST_GATHER_SECONDS
