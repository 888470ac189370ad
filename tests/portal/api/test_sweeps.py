"""Sweeps by REST: submitted once for each key."""

from collections.abc import Callable
from typing import Any

from scheduling.jobs.models import Job, Sweep
from scheduling.sweeps.services import feed_sweeps
from tests.factories.cluster import job_document, make_job

URL = "/api/v1/sweeps/"
GRID = {"LR": ["0.1", "0.01"]}


def submit(client: Any, *, key: str = "k", **changes: Any) -> Any:
    body = {"job": job_document(), "parameters": GRID, **changes}
    return client.post(URL, body, headers={"Idempotency-Key": key} if key else {})


def test_a_sweep_is_made_once_for_each_key(api: Any) -> None:
    first, again = submit(api("alice")), submit(api("alice"))
    other, without = submit(api("alice"), key="other"), submit(api("alice"), key="")

    assert [r.status_code for r in (first, again, other, without)] == [201, 200, 201, 201]
    assert first.json()["id"] == again.json()["id"]
    assert (Sweep.objects.unscoped().count(), Job.objects.unscoped().count()) == (3, 6)


def test_a_key_of_something_else_is_refused(api: Any, problem: Callable[..., Any]) -> None:
    client = api("alice")
    submit(client)
    make_job("alice")
    Job.objects.unscoped().filter(pk=make_job("alice").pk).update(idempotency_key="of-a-job")

    for key, changes in (
        ("k", {"parameters": {"LR": ["0.1"]}}),
        ("k", {"max_parallel": 1}),
        ("k", {"job": job_document(worker={"command": "echo other"})}),
        ("of-a-job", {}),
    ):
        body = problem(submit(client, key=key, **changes), 409)
        assert body["errors"][0]["field"] == "Idempotency-Key"
    problem(submit(client, key="x" * 201), 400)
    headers = {"Idempotency-Key": "k"}
    problem(client.post("/api/v1/jobs/", job_document(), headers=headers), 409)
    assert Sweep.objects.unscoped().count() == 1


def test_a_hold_is_never_taken_back_by_a_limit(api: Any, problem: Callable[..., Any]) -> None:
    held = {**job_document(), "held": True}

    body = problem(submit(api("alice"), job=held, max_parallel=1), 400)
    all_held = submit(api("alice"), job=held)

    assert body["errors"][0]["field"] == "max_parallel"
    assert all_held.json()["held"] == 2
    assert feed_sweeps() == 0


def test_a_sweep_is_planned_whole_and_nothing_is_stored(
    api: Any, problem: Callable[..., Any]
) -> None:
    def plan(**changes: Any) -> Any:
        body = {"job": job_document(), "parameters": {"LR": ["1", "2", "3"]}, **changes}
        return api("alice").post(f"{URL}plan/", body)

    wide = job_document(worker={"devices": 4})
    fits, waits = plan().json(), plan(job=wide).json()
    limited = plan(job=wide, max_parallel=1).json()

    assert (fits["fits"], fits["jobs"], fits["planned"], fits["planned_now"]) == ("now", 3, 3, 3)
    assert waits["fits"] == "later"
    assert waits["planned_now"] < waits["planned"] == 3
    assert (limited["fits"], limited["jobs"], limited["planned"]) == ("now", 3, 1)
    problem(plan(parameters={}), 400)
    assert not Sweep.objects.unscoped().exists()
    assert not Job.objects.unscoped().exists()
