"""The words above a job's timeline: one label an attempt, as long as there is room for it."""

from datetime import UTC, datetime, timedelta

from portal.web.components.history import StateSpan, history

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


def labels(*attempts: tuple[int, int]) -> list[str]:
    """The labels of a life of 100 minutes with attempts (number, minute of its start)."""
    edges = [minute for _, minute in attempts] + [100]
    spells = [
        StateSpan(
            state="running",
            start=START + timedelta(minutes=begin),
            end=START + timedelta(minutes=end),
            attempt=number,
        )
        for (number, begin), end in zip(attempts, edges[1:], strict=True)
    ]
    drawn = history(spells)
    assert drawn is not None
    return [label.text for label in drawn.attempts]


def test_a_job_that_never_ran_has_a_timeline_without_labels() -> None:
    assert labels((0, 0)) == []


def test_attempts_that_stand_apart_are_named_in_full() -> None:
    assert labels((1, 0), (2, 50)) == ["attempt 1", "attempt 2"]


def test_an_attempt_that_was_soon_followed_has_only_its_number() -> None:
    assert labels((1, 0), (2, 10)) == ["1", "attempt 2"]


def test_attempts_that_lie_on_each_other_have_one_label() -> None:
    assert labels((1, 0), (2, 1), (3, 2)) == ["1"]
