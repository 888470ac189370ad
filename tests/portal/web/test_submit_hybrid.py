"""Hybrid jobs on the submit page: their fields, and the preview of their grids."""

import re

import pytest
from django.test import Client

from portal.web.submit_text import read_typed
from scheduling.core.jobspec import parse_stored
from scheduling.core.round.parallel_plans import fingerprint_of
from scheduling.jobs.models import Job
from scheduling.parallelism.models import ModelProfile
from tenants.models import User
from tests.factories.cluster import make_cluster, make_priority_classes, make_virtual_cluster
from tests.factories.hybrid import hybrid_job, profiled
from tests.factories.tenants import make_user
from tests.support.cluster_pages import sign_in
from tests.support.submit_page import check_specification, form_fields

pytestmark = pytest.mark.django_db
FIELDS = {
    "name": "gpt",
    "roles.worker.devices": "4",
    "roles.worker.command": "echo hello",
    "elastic.mode": "hybrid",
    "elastic.min": "1",
    "elastic.max": "8",
    "parallel.batch": "32",
    "parallel.micro_batches": "4",
    "parallel.schedule": "gpipe",
    "parallel.stages": "first=0 last=3 data=2\nfirst=3 last=6 tensor=2",
    "parallel.max_tensor": "2",
    "parallel.profile": "none",
}


@pytest.fixture
def alice(client: Client) -> Client:
    make_cluster(1)
    make_priority_classes()
    make_virtual_cluster(cells=1)
    return sign_in(client, "alice")


def checked(client: Client, **fields: str):
    return check_specification(client, **form_fields(client) | {"source": "form"} | fields)


def cells_of(preview: str) -> list[str]:
    cells = re.findall(r"<td[^>]*>(.*?)</td>", preview, re.DOTALL)
    return [re.sub(r"<[^>]+>|\s+", " ", cell).strip() for cell in cells]


def test_fields_of_hybrid_jobs_are_written_and_read_back(alice: Client) -> None:
    found = checked(alice, **FIELDS)
    document = read_typed(found["yaml"]).document or {}
    again = check_specification(alice, source="yaml", yaml=found["yaml"])["fields"]

    assert found["errors"] == []
    assert document["parallel"] == {
        "batch": 32,
        "micro_batches": 4,
        "schedule": "gpipe",
        "stages": [
            {"first": 0, "last": 3, "data": 2},
            {"first": 3, "last": 6, "tensor": 2},
        ],
        "max_tensor": 2,
        "profile": "none",
    }
    assert {name: again[name] for name in FIELDS} == FIELDS
    assert "Devices: 1, 2, 4, 8. At most 4 pipeline stages." in found["plan"]
    assert "profile job" not in found["plan"]


def test_faults_are_shown_at_their_fields(alice: Client) -> None:
    wrong = {"parallel.micro_batches": "5", "parallel.stages": "", "parallel.max_tensor": ""}

    found = checked(alice, **FIELDS | wrong)
    words = checked(alice, **FIELDS | {"parallel.stages": "two stages"})

    assert [fault["field"] for fault in found["errors"]] == ["parallel.micro_batches"]
    assert {fault["field"].split("[")[0][:15] for fault in words["errors"]} == {"parallel.stages"}


def test_the_preview_names_the_profile_jobs_and_then_the_grids(alice: Client) -> None:
    job = hybrid_job()
    fields = {name: value for name, value in FIELDS.items() if not name.startswith("parallel.")}
    fields |= {"parallel.batch": "32", "parallel.micro_batches": "4"}

    before = checked(alice, **fields)["plan"]
    profiled(job, {1: 0.5, 2: 0.25})
    after = checked(alice, **fields)["plan"]
    page = alice.post("/submit/", form_fields(alice) | fields | {"change": "check"})

    assert "measures the model on one device of each type: a." in before
    assert cells_of(before) == []
    assert cells_of(after) == ["4 × a", "2 x (2 data)", "128"]
    assert "profile job" not in after
    assert "2 x (2 data)" in page.content.decode()


def test_profiles_of_other_people_do_not_count(alice: Client) -> None:
    job = hybrid_job()
    stranger = make_user("bob")
    profiled(job, {2: 0.25})
    Job.objects.unscoped().filter(pk=job.pk).update(owner=User.objects.get(pk=stranger.pk))
    other = fingerprint_of(parse_stored(job.spec), stranger.pk)
    ModelProfile.objects.unscoped().update(fingerprint=other)
    fields = {name: value for name, value in FIELDS.items() if not name.startswith("parallel.")}

    found = checked(alice, **fields | {"parallel.batch": "32", "parallel.micro_batches": "4"})

    assert cells_of(found["plan"]) == []
    assert "profile job" in found["plan"]
