"""What a node is told of a job."""

import json
from pathlib import Path

import pytest

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job, JobEvent
from scheduling.runs.models import Member
from scheduling.runs.queries.node_members import DirectiveKind
from tenants.models import AuditEntry
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from workers.conf import WorkerSettings
from workers.services.dispatch import claim_directives

pytestmark = pytest.mark.django_db
LOGIN = "alice:hunter2"
ROLE = {
    "image": "registry.example.org/team/train:1",
    "image_secret": "REGISTRY",
    "secrets": {"REGISTRY": LOGIN, "TOKEN": "t0ken"},
}


@pytest.fixture
def job() -> Job:
    """A job with a private image, placed by a round."""
    make_cluster(1)
    Node.objects.update(has_docker=True)
    make_priority_classes()
    make_virtual_cluster()
    found = make_job(worker=ROLE)
    run_round()
    return found


def test_the_login_of_a_registry_is_for_the_engine_and_not_for_the_job(
    job: Job, tmp_path: Path
) -> None:
    member = Member.objects.get()
    settings = WorkerSettings(data_dir=tmp_path, installation="here")

    (directive,) = claim_directives(node_ids=[member.node_id], busy=[], settings=settings, now=NOW)

    prepared = directive.preparation
    assert directive.kind is DirectiveKind.PREPARE
    assert prepared is not None
    assert prepared.container is not None
    assert prepared.container.login == LOGIN
    assert prepared.secrets == {"TOKEN": "t0ken"}
    assert "hunter2" not in json.dumps(prepared.run.to_json())
    assert "hunter2" not in repr(directive)


def test_the_login_of_a_registry_stands_in_no_row_that_people_read(job: Job) -> None:
    job.refresh_from_db()
    shown = [job.spec, job.demand, job.source_text, *JobEvent.objects.values_list("detail")]
    audited = AuditEntry.objects.unscoped().values_list("before", "after", "message")

    assert "hunter2" not in str(shown)
    assert "hunter2" not in str(list(audited))
    assert job.spec["roles"]["worker"]["image_secret"] == "REGISTRY"
