"""A job that a lead holds, as its owner and the lead see it."""

from typing import Any

from django.utils import timezone

from scheduling.core.messages import english
from scheduling.jobs.models import Job
from scheduling.jobs.queries.job_columns import ASK_A_LEAD
from scheduling.jobs.queries.jobs import page_of_queue
from tenants.models import User
from tests.factories.cluster import make_job
from tests.factories.scheduling import run_round
from tests.factories.tenants import make_viewer

URL = "/api/v1/jobs/"


def test_only_who_can_release_a_job_is_offered_that(api: Any) -> None:
    lena = User.objects.get(username="lena")
    job = make_job("alice", held=True)
    Job.objects.unscoped().filter(pk=job.pk).update(held_by=lena)
    run_round(timezone.now())

    def offered(name: str) -> dict[str, Any]:
        found: dict[str, Any] = api(name).get(f"{URL}{job.pk}/unblock/").json()
        return found

    def helps(name: str) -> str:
        (row,) = page_of_queue(make_viewer(name)).results
        return row.unblock[0]

    assert [step["changes"] for step in offered("lena")["steps"]] == [{"held": False}]
    assert helps("lena") == "Released, it starts now."
    assert offered("alice")["steps"] == []
    assert [(line["code"], line["text"]) for line in offered("alice")["proof"]] == [
        ("held", english(ASK_A_LEAD))
    ]
    assert helps("alice") == english(ASK_A_LEAD)
