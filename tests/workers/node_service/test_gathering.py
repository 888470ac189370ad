"""How long the desk gathers news between two turns."""

from workers.node_service.writer import (
    CROWD,
    GATHER_SECONDS,
    MOST_GATHER_SECONDS,
    gathering_seconds,
)


def test_where_few_jobs_come_none_waits_for_others_however_slow_a_turn_was() -> None:
    assert gathering_seconds(CROWD - 1, 5.0) == GATHER_SECONDS


def test_in_a_crowd_half_of_the_time_is_left_to_gather() -> None:
    assert gathering_seconds(CROWD, 0.04) == 0.04
    assert gathering_seconds(CROWD, 0.0) == GATHER_SECONDS


def test_a_crowd_never_waits_longer_than_the_bound() -> None:
    assert gathering_seconds(500, 30.0) == MOST_GATHER_SECONDS
