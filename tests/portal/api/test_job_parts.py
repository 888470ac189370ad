"""``gang: false``: a document that stands for several jobs."""

from typing import Any

from scheduling.jobs.models import Job, JobSecret
from tests.factories.cluster import job_document

URL = "/api/v1/jobs/"


def loose(instances: int = 3, **changes: Any) -> dict[str, Any]:
    role = {"instances": instances, "devices": 1, "command": "true", "secrets": {"KEY": "hidden"}}
    return {**job_document(), "name": "sweep", "gang": False, "roles": {"worker": role}, **changes}


def test_every_instance_is_a_job_and_the_answer_is_the_first_with_all_of_them(api: Any) -> None:
    body = api("alice").post(URL, loose()).json()

    assert body["name"] == "sweep worker-0"
    assert len(body["parts"]) == 3
    assert body["parts"][0] == body["id"]
    assert any("separate jobs" in warning for warning in body["warnings"])
    rows = [api("alice").get(f"{URL}{number}/").json() for number in body["parts"]]
    assert [row["name"] for row in rows] == [f"sweep worker-{rank}" for rank in range(3)]
    assert [row["spec"]["part"]["rank"] for row in rows] == [0, 1, 2]
    assert {row["devices"] for row in rows} == {1}
    assert [row["parts"] for row in rows] == [body["parts"]] * 3
    assert JobSecret.objects.filter(job_id__in=body["parts"]).count() == 3


def test_a_gang_has_no_parts(api: Any) -> None:
    assert api("alice").post(URL, job_document()).json()["parts"] == []


def test_the_same_key_gives_the_same_parts_and_another_name_is_refused(api: Any) -> None:
    first = api("alice").post(URL, loose(), headers={"Idempotency-Key": "k"})
    again = api("alice").post(URL, loose(), headers={"Idempotency-Key": "k"})
    other = api("alice").post(URL, loose(name="other"), headers={"Idempotency-Key": "k"})

    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json()["parts"] == first.json()["parts"]
    assert Job.objects.unscoped().count() == 3


def test_in_a_list_they_come_one_after_another_and_count(api: Any) -> None:
    answer = api("alice").post(f"{URL}bulk/", [loose(2), job_document(), loose(2)])

    names = [row["name"] for row in answer.json()["results"]]
    parts = [row["parts"] for row in answer.json()["results"]]
    assert names == [
        "sweep worker-0",
        "sweep worker-1",
        "hello",
        "sweep worker-0",
        "sweep worker-1",
    ]
    assert parts[0] == parts[1] != parts[3] == parts[4]
    assert parts[2] == []
    too_many = api("alice").post(f"{URL}bulk/", [loose(600), loose(600)])
    assert too_many.status_code == 400
    assert Job.objects.unscoped().count() == 5


def test_a_copy_of_a_part_is_that_part_alone(api: Any) -> None:
    parts = api("alice").post(URL, loose()).json()["parts"]

    copy = api("alice").post(f"{URL}{parts[1]}/clone/", {}).json()

    assert copy["parts"] == [copy["id"]]
    assert Job.objects.unscoped().get(pk=copy["id"]).spec["part"]["rank"] == 1


def test_a_plan_is_that_of_the_first_instance(api: Any) -> None:
    whole = api("alice").post(f"{URL}plan/", loose(900, gang=True)).json()
    first = api("alice").post(f"{URL}plan/", loose(900)).json()

    assert whole["fits"] == "never"
    assert first["fits"] == "now"
    assert any("separate jobs" in warning for warning in first["warnings"])
    assert not Job.objects.unscoped().exists()
