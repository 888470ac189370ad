"""Policy advice over the API: request, result, rights, cancel, faults."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from scheduling.core.policies import POLICIES
from scheduling.jobs.models import Job
from scheduling.rounds.services import rounds
from scheduling.rounds.services.evidence import store_round
from scheduling.runs.models import Attempt
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.services.what_if import answer_what_if
from tests.factories.cluster import make_job
from tests.factories.scheduling import CONFIG

URL = "/api/v1/policy-advice/"
Problem = Callable[..., Any]


@pytest.fixture(autouse=True)
def two_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: POLICIES[name] for name in ("fifo", "srtf")}
    monkeypatch.setattr("scheduling.what_if.services.advice.POLICIES", found)


def question(**changes: Any) -> dict[str, Any]:
    since = timezone.now() - timedelta(hours=1)
    return {"virtual_cluster": "vision-a", "since": since.isoformat(), **changes}


def a_round(data_dir: Path) -> None:
    def store(number: int, reading: Any, result: Any) -> tuple[str, str, int]:
        return store_round(
            storage=DirectoryStorage(data_dir), number=number, reading=reading, result=result
        )

    rounds.run_round(now=timezone.now, config=CONFIG, store=store)


def test_an_advice_is_accepted_computed_and_read_by_those_who_see_the_jobs(
    api: Any, problem: Problem
) -> None:
    make_job("alice")
    data_dir = Path(settings.TESSERA.data_dir)
    a_round(data_dir)
    Attempt.objects.update(running_at=timezone.now())

    asked = api("alice").post(URL, question(), format="json")
    pk = asked.json()["id"]
    answer_what_if(
        pk=pk, storage=DirectoryStorage(data_dir), now=timezone.now() + timedelta(minutes=5)
    )
    done = api("vera").get(f"{URL}{pk}/").json()

    assert asked.status_code == 202
    assert (asked.json()["state"], asked.json()["result"]) == ("queued", None)
    assert (done["state"], done["fault"], done["policy"]) == ("done", "", "fifo")
    assert [one["policy"] for one in done["result"]["policies"]] == ["fifo", "srtf"]
    assert {row["name"] for row in done["result"]["changes"]["virtual_clusters"]} == {"vision-a"}
    assert done["result"]["accuracy"]["starts"]["jobs"] == 1
    assert [row["id"] for row in api("alice").get(URL).json()["results"]] == [pk]
    assert api("alice").get("/api/v1/what-if/").json()["results"] == []
    problem(api("alice").get(f"/api/v1/what-if/{pk}/"), 404)


def test_another_tenant_gets_404(api: Any, problem: Problem) -> None:
    pk = api("alice").post(URL, question(), format="json").json()["id"]

    problem(api("bob").get(f"{URL}{pk}/"), 404)
    problem(api("bob").post(f"{URL}{pk}/cancel/", {}, format="json"), 404)
    problem(api("bob").post(URL, question(), format="json"), 404)
    assert api("bob").get(URL).json()["results"] == []


def test_the_requester_cancels_and_a_second_cancel_changes_nothing(
    api: Any, problem: Problem
) -> None:
    pk = api("alice").post(URL, question(), format="json").json()["id"]

    problem(api("vera").post(f"{URL}{pk}/cancel/", {}, format="json"), 403)
    first = api("alice").post(f"{URL}{pk}/cancel/", {}, format="json").json()
    again = api("alice").post(f"{URL}{pk}/cancel/", {}, format="json").json()

    assert (first["state"], first["fault"]) == ("failed", "Cancelled.")
    assert again == first
    assert not answer_what_if(
        pk=pk, storage=DirectoryStorage(Path(settings.TESSERA.data_dir)), now=timezone.now()
    )


def test_a_what_if_is_cancelled_too(api: Any, problem: Problem) -> None:
    what_if = {**question(), "policy": "srtf"}
    pk = api("alice").post("/api/v1/what-if/", what_if, format="json").json()["id"]

    problem(api("bob").post(f"/api/v1/what-if/{pk}/cancel/", {}, format="json"), 404)
    done = api("alice").post(f"/api/v1/what-if/{pk}/cancel/", {}, format="json").json()

    assert (done["state"], done["fault"]) == ("failed", "Cancelled.")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"nodes": {"no-such": 1}}, "nodes"),
        ({"nodes": {"A100": 10**300}}, "nodes"),
        ({"nodes": {"A100": 1.5}}, "nodes"),
        ({"since": "yesterday"}, "since"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_requests_are_refused_by_name(
    api: Any, problem: Problem, changes: dict[str, Any], field: str
) -> None:
    body = problem(api("alice").post(URL, question(**changes), format="json"), 400)

    assert body["errors"][0]["field"].startswith(field)


def test_the_metric_has_the_regret_of_visible_virtual_clusters(api: Any) -> None:
    make_job("alice")
    data_dir = Path(settings.TESSERA.data_dir)
    a_round(data_dir)
    Attempt.objects.update(running_at=timezone.now(), ended_at=timezone.now())
    Job.objects.unscoped().update(state="succeeded", finished_at=timezone.now())
    pk = api("alice").post(URL, question(), format="json").json()["id"]
    answer_what_if(pk=pk, storage=DirectoryStorage(data_dir), now=timezone.now())

    mine = api("alice").get("/metrics").content.decode()
    other = api("bob").get("/metrics").content.decode()

    lines = [line for line in mine.splitlines() if line.startswith("tessera_policy_regret")]
    assert [line.partition("{")[0] for line in lines] == [
        "tessera_policy_regret_seconds",
        "tessera_policy_regret_age_seconds",
    ]
    assert 'policy="fifo"' in lines[0]
    assert lines[0].endswith(" 0")
    assert "tessera_policy_regret" not in other
