"""Who holds a job and who may release it; and what amending cannot go round."""

from datetime import datetime
from typing import Any

import pytest

from portal.api.documents import submit_context_for
from scheduling.clusters.models import VcLimit
from scheduling.estimates.models import StartEstimate
from scheduling.jobs.models import Job
from scheduling.jobs.queries.why import why
from scheduling.jobs.services.amendments import amend_job, hold_job, release_hold
from scheduling.jobs.services.idempotency import IdempotencyConflictError
from scheduling.jobs.services.submission import clone_job
from scheduling.jobs.validation import InvalidJobError
from tenants.errors import ConflictError, ForbiddenError
from tenants.models import Membership, Tenant
from tenants.roles import Role
from tests.factories.cluster import make_virtual_cluster
from tests.factories.scheduling import NOW, make_two_tenants, run_round, submit
from tests.factories.tenants import make_member, make_user, make_viewer
from tests.support.interleaving import before_query

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def people() -> None:
    """Vision has a second member, dave, beside alice and its lead ada."""
    make_two_tenants()
    vision = Tenant.objects.unscoped().get(name="vision")
    make_member(vision, make_user("dave"), Role.MEMBER)


def is_held(job: Job) -> bool:
    return Job.objects.unscoped().get(pk=job.pk).held


def test_only_owner_lead_and_admin_release_a_held_job() -> None:
    job = submit(held=True)

    with pytest.raises(ForbiddenError):
        release_hold(job=job, viewer=make_viewer("dave"))
    assert is_held(job)

    for name in ("alice", "ada", "root"):
        Job.objects.unscoped().filter(pk=job.pk).update(held=True)
        assert release_hold(job=job, viewer=make_viewer(name))
        assert not release_hold(job=job, viewer=make_viewer(name))


def test_an_owner_cannot_release_the_hold_of_a_lead() -> None:
    job, alice = submit(), make_viewer("alice")
    hold_job(job=job, viewer=make_viewer("ada"))

    with pytest.raises(ForbiddenError):
        release_hold(job=job, viewer=alice)
    job.refresh_from_db()
    with pytest.raises(ForbiddenError):
        amend(job, "alice", {"held": False})

    assert is_held(job)
    assert release_hold(job=job, viewer=make_viewer("root"))
    assert hold_job(job=job, viewer=alice)
    assert release_hold(job=job, viewer=alice)


def test_the_hold_of_a_lead_stays_the_leads_after_another_hold() -> None:
    job, alice = submit(), make_viewer("alice")
    hold_job(job=job, viewer=make_viewer("ada"))

    assert not hold_job(job=job, viewer=alice)
    amend(job, "alice", {"held": True})

    with pytest.raises(ForbiddenError):
        release_hold(job=job, viewer=alice)
    assert is_held(job)


def test_the_hold_of_a_lead_during_an_amendment_stays() -> None:
    job, ada = submit(held=True), make_viewer("ada")
    held = before_query("SAVEPOINT", lambda: hold_job(job=job, viewer=ada))

    with held, pytest.raises(ConflictError):
        amend(job, "alice", {"held": False})

    assert is_held(job)


def test_a_lead_holds_a_job_that_its_owner_holds_already() -> None:
    job, alice = submit(held=True), make_viewer("alice")

    assert hold_job(job=job, viewer=make_viewer("ada"))

    assert not hold_job(job=job, viewer=make_viewer("ada"))
    with pytest.raises(ForbiddenError):
        release_hold(job=job, viewer=alice)


def test_the_refusal_names_the_lead_who_holds_a_job() -> None:
    job, viewers = submit(), {name: make_viewer(name) for name in ("alice", "ada")}
    hold_job(job=job, viewer=viewers["ada"])
    run_round()
    StartEstimate.objects.create(
        job=job,
        round_number=1,
        made_at=NOW,
        sought=1,
        sought_for="held",
        steps=[{"kind": "gate", "text": "Released, it starts now.", "changes": {"held": False}}],
    )

    told = {
        name: why(viewer, job.pk, now=NOW, round_seconds=10) for name, viewer in viewers.items()
    }

    assert told["alice"].unblock == ("Ask a lead of the tenant to release it.",)
    assert told["alice"].steps == ()
    assert [step["changes"] for step in told["ada"].steps] == [{"held": False}]


def amend(job: Job, who: str, changes: dict[str, object], now: datetime = NOW) -> Job:
    viewer = make_viewer(who)
    return amend_job(
        job=job, changes=changes, viewer=viewer, submit_context=submit_context_for(viewer), now=now
    )


def test_a_lead_moves_a_job_only_to_where_its_owner_may_submit() -> None:
    job, vision = submit(), Tenant.objects.unscoped().get(name="vision")
    make_virtual_cluster("vision-b", vision)
    VcLimit.objects.create(
        membership=Membership.objects.unscoped().get(user__username="alice"),
        virtual_cluster=job.virtual_cluster,
    )
    changes: dict[str, object] = {"virtual_cluster": "vision-b", "class": "opportunistic"}

    with pytest.raises(InvalidJobError) as refused:
        amend(job, "ada", changes)

    assert "owner" in refused.value.errors[0].message
    VcLimit.objects.all().delete()
    assert amend(job, "ada", changes).virtual_cluster.name == "vision-b"


def test_a_copy_is_made_once_for_each_key_and_of_one_job_only() -> None:
    job, other, viewer = submit(name="a"), submit(name="a"), make_viewer("alice")
    asked: dict[str, Any] = {
        "viewer": viewer,
        "submit_context": submit_context_for(viewer),
        "now": NOW,
        "idempotency_key": "k",
    }

    first, is_new = clone_job(job=job, **asked)
    again, is_new_again = clone_job(job=job, **asked)

    assert (first.pk, is_new, is_new_again) == (again.pk, True, False)
    assert first.cloned_from_id == job.pk
    with pytest.raises(IdempotencyConflictError):
        clone_job(job=other, **asked)
