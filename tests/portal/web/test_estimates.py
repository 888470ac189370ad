"""The chart of estimated and true waits: how far its axes reach."""

from datetime import UTC, datetime

import pytest

from portal.web.reports import calibration_figure
from scheduling.estimates.queries import EstimateAccuracy

AT = datetime(2026, 3, 1, tzinfo=UTC)


def waits(*points: tuple[float, float, float, float]) -> EstimateAccuracy:
    return EstimateAccuracy(
        virtual_cluster="vision-a",
        estimates=len(points),
        inside=1.0,
        below=0.0,
        above=0.0,
        loss=1.0,
        plain_loss=1.0,
        waiting=0,
        withheld=0,
        points=tuple((AT, *point) for point in points),
    )


@pytest.mark.parametrize(
    ("p90", "wait", "last"),
    [
        (20, 5, 600),
        (3000, 5, 3600),
        (20, 3601, 6 * 3600),
        (30 * 86400, 5, 7 * 86400),
    ],
)
def test_the_axes_reach_as_far_as_the_longest_wait(p90: float, wait: float, last: int) -> None:
    figure = calibration_figure([waits((1, 2, 3, 4), (1, 2, p90, wait))])

    assert figure["layout"]["xaxis"]["tickvals"][-1] == last
    assert figure["layout"]["yaxis"]["tickvals"][-1] == last
    assert figure["data"][-1]["x"] == [1.0, last]


def test_where_no_start_is_known_nothing_is_drawn() -> None:
    assert calibration_figure([waits()])["data"] == []
