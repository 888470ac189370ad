"""Reads that the audit records: exports, and logs that an admin of another tenant reads."""

import pytest
from django.test import Client

from scheduling.jobs.models import JobTemplate
from tenants.models import AuditEntry
from tests.support.cluster_pages import Stage, make_stage, sign_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    return make_stage(2)


def recorded(action: str) -> list[tuple[str, str]]:
    rows = AuditEntry.objects.unscoped().filter(action=action).order_by("pk")
    return list(rows.values_list("actor_name", "object_name"))


def test_an_admin_who_reads_the_log_of_another_tenant_is_recorded_once(
    client: Client, stage: Stage
) -> None:
    job = stage.running
    role = next(iter(job.spec["roles"]))
    address = f"/api/v1/jobs/{job.pk}/logs/?role={role}"

    for name in ("alice", "root", "root", "lena"):
        assert sign_in(client, name).get(address).status_code == 200

    row = AuditEntry.objects.unscoped().get(action="job.read_log")
    assert (row.actor_name, row.object_name, row.tenant) == ("root", job.name, stage.vision)


def test_exports_are_recorded(client: Client, stage: Stage) -> None:
    lena = sign_in(client, "lena")
    lena.get("/usage/export.csv?month=2026-03&by=person")
    lena.get("/api/v1/usage/?format=csv")
    lena.get("/api/v1/usage/")
    lena.get("/api/v1/audit/")
    lena.get("/api/v1/audit/")

    assert [actor for actor, _ in recorded("usage.export")] == ["lena", "lena"]
    assert recorded("audit.export") == [("lena", "audit")]


def test_templates_of_a_tenant_are_recorded_and_ones_own_are_not(
    client: Client, stage: Stage
) -> None:
    alice = sign_in(client, "alice")
    for tenant in ("vision", ""):
        sent = {"template_name": f"for {tenant}", "yaml": "name: x", "template_tenant": tenant}
        alice.post("/job-templates/keep/", sent)
    kept = list(JobTemplate.objects.unscoped())
    for template in kept:
        alice.post("/job-templates/delete/", {"id": template.pk})

    assert len(kept) == 2
    assert recorded("job_template.create") == [("alice", "for vision")]
    assert recorded("job_template.delete") == [("alice", "for vision")]
