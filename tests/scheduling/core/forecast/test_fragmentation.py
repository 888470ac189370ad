"""Forecast of stranded devices in simulated futures."""

import pytest

from scheduling.core.forecast.arrivals import PastSubmission, RecentSubmissions
from scheduling.core.forecast.durations import RunTimes
from scheduling.core.forecast.fragmentation import FragmentationForecast, forecast_fragmentation
from scheduling.core.forecast.futures import Past
from scheduling.core.simulation import SimulationSettings
from tests.factories.rounds import cluster_snapshot, jobs_started_by, queued_job

OFFSETS = (0.0, 600.0, 3600.0)


def forecast(futures: int = 5, **more: object) -> FragmentationForecast:
    """Three jobs of 7 devices; two end after 300 s, one after 1,800 s, and one waits for 8."""
    start = cluster_snapshot(*(queued_job(n, 7, borrow=True) for n in (1, 2, 3)))
    snapshot = cluster_snapshot(queued_job(9, 8, borrow=True), holding=jobs_started_by(start))
    ends = {1: 300.0, 2: 300.0, 3: 1800.0, 9: 900.0}
    return forecast_fragmentation(
        snapshot,
        RunTimes([]),
        {job: Past(lineage=(), most=end, left=1e9) for job, end in ends.items()},
        more.pop("recent", RecentSubmissions()),  # type: ignore[arg-type]
        offsets=more.pop("offsets", OFFSETS),  # type: ignore[arg-type]
        futures=futures,
        seed=1,
        settings=SimulationSettings(horizon=7200.0),
        **more,  # type: ignore[arg-type]
    )


def test_stranded_devices_follow_the_simulated_jobs() -> None:
    found = forecast()

    (chain,) = found.chains
    assert found.futures == 5
    assert [band[1] for band in chain.idle] == [3, 9, 24]
    assert [band[1] for band in chain.by_size[2]] == [3, 1, 0]
    assert [band[1] for band in chain.by_size[8]] == [3, 1, 0]
    assert [band[1] for band in chain.by_level[3]] == [3, 1, 0]
    assert chain.levels[-1] == ("a-node", 8)


def test_later_submissions_use_idle_devices() -> None:
    """About 20 jobs of one device an hour, each of which runs for hours."""
    recent = RecentSubmissions(
        jobs=[PastSubmission(job=queued_job(50, 1, borrow=True), lineage=())] * 20,
        seconds=3600.0,
        ahead=3600.0,
    )

    without, found = forecast(), forecast(recent=recent)

    assert found.chains[0].idle[0] == without.chains[0].idle[0]
    assert found.chains[0].idle[-1][1] < without.chains[0].idle[-1][1]


def test_without_time_only_the_first_future_counts() -> None:
    found = forecast(go_on=lambda: False)

    assert found.futures == 1
    assert list(found.chains[0].idle) == [(3, 3, 3), (9, 9, 9), (24, 24, 24)]


@pytest.mark.parametrize("offsets", [(), (1.0,), (0.0, 5.0, 5.0)])
def test_times_ascend_from_the_present(offsets: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend from 0"):
        forecast(offsets=offsets)
