"""Questions about past days over the API."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from scheduling.rounds.services import rounds
from scheduling.rounds.services.evidence import store_round
from scheduling.runs.models import Attempt
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.services.what_if import answer_what_if
from tenants.roles import Scope
from tests.factories.cluster import make_job
from tests.factories.scheduling import CONFIG

URL = "/api/v1/what-if/"
Problem = Callable[..., Any]


def question(**changes: Any) -> dict[str, Any]:
    since = timezone.now() - timedelta(hours=1)
    return {
        "virtual_cluster": "vision-a",
        "policy": "srtf",
        "since": since.isoformat(),
        **changes,
    }


def a_round(data_dir: Path) -> None:
    def store(number: int, reading: Any, result: Any) -> tuple[str, str, int]:
        return store_round(
            storage=DirectoryStorage(data_dir), number=number, reading=reading, result=result
        )

    rounds.run_round(now=timezone.now, config=CONFIG, store=store)


def test_a_question_is_accepted_answered_apart_and_read(api: Any) -> None:
    job = make_job("alice")
    data_dir = Path(settings.TESSERA.data_dir)
    a_round(data_dir)
    Attempt.objects.update(running_at=timezone.now())

    asked = api("alice").post(URL, question(), format="json")
    pk = asked.json()["id"]
    later = timezone.now() + timedelta(minutes=5)
    answer_what_if(pk=pk, storage=DirectoryStorage(data_dir), now=later)
    answer = api("vera").get(f"{URL}{pk}/").json()
    listed = api("alice").get(URL).json()["results"]

    assert asked.status_code == 202
    assert (asked.json()["state"], asked.json()["result"]) == ("queued", None)
    assert (answer["state"], answer["fault"]) == ("done", "")
    (row,) = answer["result"]["jobs"]
    assert (row["job"], row["verdict"]) == (job.pk, "unknown")
    assert answer["result"]["was"]["policy"] == "fifo"
    assert [(row["id"], row["asked_by"], row["state"]) for row in listed] == [
        (pk, "alice", "done")
    ]


def test_others_see_neither_question_nor_answer(api: Any, problem: Problem) -> None:
    asked = api("alice").post(URL, question(), format="json").json()

    problem(api("bob").get(f"{URL}{asked['id']}/"), 404)
    problem(api("bob").post(URL, question(), format="json"), 404)
    assert api("bob").get(URL).json()["results"] == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"policy": "no-such"}, "policy"),
        ({"policy_args": {"slack": "x"}}, "policy_args"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2030-01-01T00:00:00"}, "since"),
        ({"until": "2020-01-01T00:00:00Z"}, "since"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_questions_are_refused_by_name(
    api: Any, problem: Problem, changes: dict[str, Any], field: str
) -> None:
    body = problem(api("alice").post(URL, question(**changes), format="json"), 400)

    assert body["errors"][0]["field"] == field


def test_a_token_needs_to_read_jobs(api: Any, problem: Problem) -> None:
    reader = api("alice", Scope.JOBS_READ)
    assert reader.post(URL, question(), format="json").status_code == 202
    problem(api("lena", Scope.AUDIT_READ).post(URL, question(), format="json"), 404)
