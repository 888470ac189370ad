"""Pages of job limits: of the cluster, of a tenant, and of a member."""

import re

import pytest
from django.test import Client

from scheduling.jobs.models import Job, JobLimit
from tenants.models import AuditEntry
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    return make_stage()


def test_a_cluster_admin_sees_and_sets_the_limits_of_the_cluster(
    client: Client, stage: Stage
) -> None:
    root = sign_in(client, "root")

    page = read(root, "/job-limits/")
    before = words_of(page)
    root.post("/job-limits/", {"per_person": "5", "per_tenant": ""})
    after = words_of(read(root, "/job-limits/"))

    assert re.search(r'href="/tenants/"[^>]* aria-current="page"', page)
    assert "vision live jobs 2 per tenant 30,000 built-in per user 10,000 built-in" in before
    assert "per tenant 30,000 built-in per user 5 from the cluster" in after
    assert JobLimit.objects.get().key == "cluster"
    row = AuditEntry.objects.unscoped().get(action="job_limit.update")
    assert (row.actor_name, row.object_name) == ("root", "the cluster")
    assert "job limit" in words_of(read(root, "/audit/?what=job_limit.update"))


def test_a_lead_sets_the_limit_per_person_and_sees_that_of_the_tenant(
    client: Client, stage: Stage
) -> None:
    lena, url = sign_in(client, "lena"), f"/tenants/{stage.vision.pk}/job-limits/"

    lena.post(url, {"per_person": "7", "per_tenant": "1"})
    shown = read(lena, url)

    assert JobLimit.objects.get().per_tenant is None
    assert 'name="per_tenant"' not in shown
    assert "Live jobs: 2 of at most 30,000" in words_of(shown)
    assert "alice live jobs 2 limit 7 from the tenant" in words_of(shown)
    assert url in read(lena, f"/tenants/{stage.vision.pk}/")


def test_a_limit_of_the_tenant_stays_when_a_lead_changes_the_other(
    client: Client, stage: Stage
) -> None:
    url = f"/tenants/{stage.vision.pk}/job-limits/"
    sign_in(client, "root").post(url, {"per_person": "", "per_tenant": "40"})

    answer = sign_in(client, "lena").post(url, {"per_person": "7"})

    assert answer.status_code == 302
    limit = JobLimit.objects.get()
    assert (limit.per_person, limit.per_tenant) == (7, 40)


def test_the_limit_of_a_member_is_set_with_the_members_role(client: Client, stage: Stage) -> None:
    member = stage.vision.memberships.get(user__username="alice")
    lena, url = sign_in(client, "lena"), f"/tenants/{stage.vision.pk}/members/{member.pk}/"
    form = {"role": "member", "version": str(member.version)}

    wrong = lena.post(url, {**form, "max_live_jobs": "0"})
    lena.post(url, {**form, "max_live_jobs": "3"})

    assert wrong.status_code == 422
    assert JobLimit.objects.get().per_person == 3
    assert 'name="max_live_jobs" value="3"' in read(lena, url)
    shown = words_of(read(lena, f"/tenants/{stage.vision.pk}/job-limits/"))
    assert "alice live jobs 2 limit 3" in shown
    assert Job.objects.unscoped().live().filter(owner__username="alice").count() == 2


@pytest.mark.parametrize("value", ["0", "-1", "many", "99999999999"])
def test_a_value_that_is_not_valid_is_named_and_nothing_is_stored(
    client: Client, stage: Stage, value: str
) -> None:
    answer = sign_in(client, "root").post("/job-limits/", {"per_person": value})

    assert answer.status_code == 422
    assert not JobLimit.objects.exists()


@pytest.mark.parametrize("who", ["alice", "victor", "lena", "bob"])
def test_limits_are_for_those_who_may_set_them(client: Client, stage: Stage, who: str) -> None:
    person = sign_in(client, who)

    assert person.get("/job-limits/").status_code == 403
    assert person.post("/job-limits/", {"per_person": "1"}).status_code == 403
    if who != "lena":
        answer = person.post(f"/tenants/{stage.vision.pk}/job-limits/", {"per_person": "1"})
        assert answer.status_code in {403, 404}
    assert not JobLimit.objects.exists()
