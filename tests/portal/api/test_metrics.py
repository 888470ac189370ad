"""``/api/v1/jobs/{id}/metrics/``: curves of reported metrics, as JSON and CSV."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from scheduling.jobs.models import Job
from tests.factories.cluster import make_job
from tests.factories.metric_points import add_values, member_of_job


@pytest.fixture
def job(api: Any) -> Job:
    job = make_job("alice")
    add_values(member_of_job(job), [3.0, 2.0, math.nan, 1.0])
    add_values(member_of_job(job, attempt=2), [1.5], first=2)
    add_values(member_of_job(job), [0.1] * 50, name="val/acc")
    add_values(member_of_job(job, rank=1), [9.0, 8.0])
    return job


def url(job: Job) -> str:
    return f"/api/v1/jobs/{job.pk}/metrics/"


def test_metrics_are_listed_without_curves(api: Any, job: Job) -> None:
    found = api("alice").get(url(job)).json()

    assert found == {
        "total_steps": None,
        "tracked_runs": [],
        "metrics": [
            {"name": "loss", "points": 7, "ranks": 2, "last": 1.5, "last_step": 2},
            {"name": "val/acc", "points": 50, "ranks": 1, "last": 0.1, "last_step": 49},
        ],
        "curves": [],
    }


def test_a_curve_has_gaps_for_nan_and_marks_repeated_steps(api: Any, job: Job) -> None:
    (curve,) = api("alice").get(url(job), {"name": "loss"}).json()["curves"]

    assert (curve["name"], curve["role"], curve["rank"], curve["process"]) == (
        "loss",
        "worker",
        0,
        0,
    )
    assert curve["step"] == [0, 1, 2, 3, 2]
    assert curve["value"] == [3.0, 2.0, None, 1.0, 1.5]
    assert curve["not_finite"] == [0, 0, 1, 0, 0]
    assert curve["attempt"] == [1, 1, 1, 1, 2]
    assert curve["superseded"] == [False, False, True, True, False]


def test_curves_of_all_ranks_within_a_range(api: Any, job: Job) -> None:
    asked = {"name": "val/acc,loss", "ranks": "all", "x": "epoch", "since": "0.01", "until": "0.1"}
    found = api("alice").get(url(job), asked).json()["curves"]

    assert [(one["name"], one["rank"]) for one in found] == [
        ("val/acc", 0), ("loss", 0), ("loss", 1),
    ]  # fmt: skip
    assert found[0]["step"] == list(range(1, 11))
    assert found[2]["value"] == [8.0]


def test_a_curve_has_at_most_the_wanted_points(api: Any, job: Job) -> None:
    (curve,) = api("alice").get(url(job), {"name": "val/acc", "points": 10}).json()["curves"]

    assert len(curve["step"]) == 10
    assert sum(curve["count"]) == 50


def test_curves_as_csv(api: Any, job: Job) -> None:
    answer = api("alice").get(url(job), {"name": "loss", "format": "csv"})

    head, *rows = answer.content.decode().splitlines()
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert head.startswith("name,role,rank,process,step,time,epoch,attempt,value,")
    assert len(rows) == 5
    assert rows[0].startswith("loss,worker,0,0,0,")
    assert rows[2].split(",")[8:] == ["", "", "", "0", "1", "True"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", "age"), ("ranks", "some"), ("points", "9"), ("points", "10001"), ("since", "nan"),
        ("rank", "-1"), ("until", "soon"),
        ("format", "xml"), ("name", ",".join("abcdefghijklmnopq")),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_an_error(
    api: Any, job: Job, problem: Callable[..., Any], name: str, value: str
) -> None:
    found = problem(api("alice").get(url(job), {name: value}), 400)

    assert [error["field"] for error in found["errors"]] == [name]


def test_another_tenant_does_not_get_metrics(
    api: Any, job: Job, problem: Callable[..., Any]
) -> None:
    problem(api("bob").get(url(job), {"name": "loss"}), 404)
    problem(api("bob").get(url(job), {"name": "loss", "format": "csv"}), 404)


def test_the_number_of_queries_does_not_depend_on_the_points(
    api: Any, job: Job, django_assert_num_queries: Any
) -> None:
    client = api("alice")
    add_values(member_of_job(job), [1.0] * 20_000, name="lr")

    # Session, user, memberships; job and rows for curves, goal, MLflow runs and list.
    with django_assert_num_queries(11):
        client.get(url(job), {"name": "lr,loss", "ranks": "all"})
