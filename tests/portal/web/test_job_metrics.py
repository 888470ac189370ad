"""Charts of metrics on the page of a job, its progress and its summary."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from portal.web.job_metrics import lane_of
from portal.web.job_progress import end_range, progress_drawing
from scheduling.jobs.models import Job
from tenants.roles import Role
from tests.factories.cluster import make_job, make_shared_cluster
from tests.factories.metric_points import add_values, member_of_job
from tests.support.cluster_pages import sign_in
from workers.goodput import CurvePoint

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def samples(steps: list[int], *, every: float = 60.0, attempt: int = 1) -> list[CurvePoint]:
    return [
        CurvePoint(
            at=START + timedelta(seconds=every * place),
            attempt=attempt,
            step=step,
            throughput=1.0,
            goodput=1.0,
            step_seconds=None,
            loss=None,
        )
        for place, step in enumerate(steps)
    ]


def test_a_steady_pace_gives_a_narrow_range() -> None:
    now = START + timedelta(minutes=9)

    found = end_range(samples([100 * n for n in range(10)]), total_steps=1900, now=now)

    assert found is not None
    assert found.likely == now + timedelta(minutes=10)
    assert found.soonest < found.likely < found.latest < now + timedelta(minutes=11)


def test_past_pauses_are_in_the_latest_end() -> None:
    steady = samples([100 * n for n in range(10)])
    late = [
        *samples([0, 100], attempt=1),
        *(
            CurvePoint(
                at=one.at + timedelta(hours=1), attempt=2, step=one.step + 100, throughput=1.0,
                goodput=1.0, step_seconds=None, loss=None,
            )
            for one in steady
        ),
    ]  # fmt: skip
    now = late[-1].at

    found = end_range(late, total_steps=2000, now=now)

    assert found is not None
    assert found.likely == now + timedelta(minutes=10)
    assert found.latest > now + timedelta(minutes=60)


def test_an_end_beyond_all_times_is_limited() -> None:
    found = end_range(samples(list(range(10))), total_steps=1 << 53, now=START)

    assert found is not None
    assert found.likely == found.latest == START + timedelta(days=3650)


@pytest.mark.parametrize("steps", [[7], [1, 2, 3], [5, 5, 5, 5, 5], [9, 8, 7, 6]])
def test_without_a_pace_there_is_no_end(steps: list[int]) -> None:
    assert end_range(samples(steps), total_steps=100, now=START) is None


def test_the_bar_has_gaps_between_attempts() -> None:
    hour = timedelta(hours=1)
    drawn = progress_drawing(
        [(START, START + hour), (START + 2 * hour, START + 4 * hour)],
        now=START + 4 * hour,
        end=None,
    )

    assert drawn is not None
    assert [(one.x, one.width) for one in drawn.attempts] == [(0.0, 25.0), (50.0, 50.0)]
    assert drawn.band is None


@pytest.mark.parametrize(
    ("name", "lane"),
    [
        ("loss", "loss"),
        ("val_loss", "loss"),
        ("train/loss", "loss"),
        ("val/", "val/"),
        ("lr", "lr"),
    ],
)
def test_data_sets_of_a_metric_share_a_lane(name: str, lane: str) -> None:
    assert lane_of(name) == lane


@pytest.fixture
def pages() -> Callable[[str], Client]:
    make_shared_cluster(alice=Role.MEMBER)
    return lambda name: sign_in(Client(), name)


@pytest.fixture
def job(pages: Callable[[str], Client]) -> Job:
    job = make_job("alice")
    add_values(member_of_job(job), [3.0, 2.0, 1.0])
    add_values(member_of_job(job, attempt=2), [1.5], first=2)
    add_values(member_of_job(job), [0.5, 0.25], name="val_loss")
    add_values(member_of_job(job), [0.1] * 4, name="lr")
    return job


def figure_of(pages: Callable[[str], Client], job: Job, **query: Any) -> dict[str, Any]:
    return json.loads(pages("alice").get(f"/jobs/{job.pk}/metrics.json", query).content)


def test_a_figure_has_lanes_and_faint_superseded_points(
    pages: Callable[[str], Client], job: Job
) -> None:
    figure = figure_of(pages, job, name="loss,val_loss,lr")

    shown = [(one["name"], one["yaxis"], one["superseded"]) for one in figure["data"]]
    assert shown == [
        ("loss (superseded)", "y", True),
        ("loss", "y", False),
        ("val_loss", "y", False),
        ("lr", "y2", False),
    ]
    assert figure["data"][0]["y"] == [1.0]
    assert figure["data"][1]["x"] == [0, 1, 2, 2]
    assert figure["data"][1]["y"] == [3.0, 2.0, None, 1.5]
    assert figure["layout"]["lanes"] == 2
    assert figure["layout"]["yaxis"]["domain"][0] > figure["layout"]["yaxis2"]["domain"][1]
    assert figure["names"] == ["loss", "val_loss", "lr"]


def test_a_figure_over_time_is_in_the_zone_of_the_page(
    pages: Callable[[str], Client], job: Job
) -> None:
    figure = figure_of(pages, job, name="lr", x="time")

    assert len(figure["data"][0]["x"]) == 4
    assert datetime.fromisoformat(figure["data"][0]["x"][0]).tzinfo is None


def test_the_page_has_chips_for_all_metrics(pages: Callable[[str], Client], job: Job) -> None:
    text = pages("alice").get(f"/jobs/{job.pk}/").content.decode()

    for name in ("loss", "val_loss", "lr"):
        assert f'data-metric="{name}"' in text
    assert 'id="chart-metrics"' in text
    assert "loss 1.5 at step 2" in text


def test_a_job_without_metrics_has_no_card(pages: Callable[[str], Client]) -> None:
    job = make_job("alice")

    text = pages("alice").get(f"/jobs/{job.pk}/").content.decode()

    assert "data-metrics" not in text.replace("wants-metrics", "")


def test_points_as_csv(pages: Callable[[str], Client], job: Job) -> None:
    answer = pages("alice").get(f"/jobs/{job.pk}/metrics.json", {"name": "lr", "format": "csv"})

    assert len(answer.content.decode().splitlines()) == 5


def test_another_tenant_gets_no_figure(pages: Callable[[str], Client], job: Job) -> None:
    assert pages("bob").get(f"/jobs/{job.pk}/metrics.json", {"name": "loss"}).status_code == 404


def test_a_figure_of_the_mean_has_a_band(pages: Callable[[str], Client], job: Job) -> None:
    add_values(member_of_job(job, rank=1), [5.0, 4.0, 2.5])

    figure = figure_of(pages, job, name="loss", ranks="all", mean="1")
    one = figure_of(pages, job, name="loss", rank="1")

    assert [trace["band"] for trace in figure["data"]] == ["low", "high", "mean"]
    assert figure["data"][2]["name"] == "loss, mean of 2 ranks"
    assert figure["data"][2]["y"] == [4.0, 3.0, 2.0]
    assert [trace["y"] for trace in one["data"]] == [[5.0, 4.0, 2.5]]
    assert "data-metrics-ranks" in pages("alice").get(f"/jobs/{job.pk}/").content.decode()


def test_values_that_are_not_finite_are_marks(pages: Callable[[str], Client], job: Job) -> None:
    add_values(member_of_job(job), [0.1, float("nan"), float("inf")], name="lr", first=4)

    figure = figure_of(pages, job, name="loss,lr")

    assert figure["broken"] == [
        {"x": 5, "text": "lr: 1 value is not finite", "lane": 1},
        {"x": 6, "text": "lr: 1 value is not finite", "lane": 1},
    ]
    assert figure["data"][-1]["y"][-2:] == [None, None]


def test_a_job_of_one_rank_has_no_choice_of_ranks(
    pages: Callable[[str], Client], job: Job
) -> None:
    assert "data-metrics-ranks" not in pages("alice").get(f"/jobs/{job.pk}/").content.decode()
