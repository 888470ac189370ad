"""The chart of the last day, also where the cluster is younger than a day."""

from datetime import UTC, datetime, timedelta

from portal.web.cluster_drawing import day_figure
from workers.day import DayPoint

START = datetime(2026, 3, 1, tzinfo=UTC)


def points(*in_use: float | None) -> list[DayPoint]:
    return [
        DayPoint(
            at=START + timedelta(minutes=10 * place),
            in_use=share,
            utilisation=None,
            efficiency=None,
        )
        for place, share in enumerate(in_use)
    ]


def test_the_time_before_anything_was_known_is_left_out() -> None:
    figure = day_figure(points(*[0.0] * 134, *[0.5] * 10))

    (trace,) = figure["data"]
    assert trace["y"] == [50.0] * 10
    assert trace["mode"] == "lines"
    assert "50 % on average" in figure["summary"].replace("\u00a0", " ")


def test_a_cluster_of_some_minutes_shows_its_last_hour_with_marks() -> None:
    (trace,) = day_figure(points(*[0.0] * 143, 0.5))["data"]

    assert trace["y"] == [0.0] * 5 + [50.0]
    assert trace["mode"] == "lines+markers"


def test_before_there_was_a_cluster_nothing_is_drawn() -> None:
    figure = day_figure(points(*[None] * 142, 0.0, 0.5))

    (trace,) = figure["data"]
    assert trace["y"] == [None] * 4 + [0.0, 50.0]
    assert "25 % on average" in figure["summary"].replace("\u00a0", " ")


def test_where_nothing_is_known_nothing_is_drawn() -> None:
    figure = day_figure(points())

    assert figure["data"] == []
    assert figure["summary"].startswith("No data yet.")
