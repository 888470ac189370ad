"""Limits of live jobs: what counts, who sets them, and that no two submits exceed them at once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduling.jobs.models import Job, JobLimit
from scheduling.jobs.queries.job_limits import (
    cluster_job_limits,
    job_limits_of_members,
    job_limits_of_tenants,
)
from scheduling.jobs.queries.submit_context import SubmitContext, read_submit_context
from scheduling.jobs.services.job_limits import (
    JobLimitError,
    JobLimits,
    bounds,
    set_cluster_limits,
    set_member_limit,
    set_tenant_limits,
)
from scheduling.jobs.services.submission import Submission, clone_job, submit_job, submit_jobs
from scheduling.sweeps.services import submit_sweep
from tenants.errors import ForbiddenError, InvalidError
from tenants.models import AuditEntry, Membership, Tenant
from tenants.roles import Role
from tests.factories.cluster import (
    job_document,
    make_cluster,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import NOW, make_tenant, make_user, make_viewer
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]


def world() -> Tenant:
    make_cluster(1)
    make_priority_classes()
    vision = make_tenant("vision", alice=Role.MEMBER, lena=Role.LEAD)
    make_virtual_cluster("vision-a", vision)
    make_user("root", is_cluster_admin=True)
    return vision


@pytest.fixture(autouse=True)
def no_bounds() -> Iterator[None]:
    """What a process remembers is of another database."""
    bounds.forget()
    yield
    bounds.forget()


def ground_of(username: str) -> SubmitContext:
    return read_submit_context(viewer=make_viewer(username), images_ignored=False)


def submit(count: int, username: str = "alice") -> Any:
    return submit_jobs(
        submissions=[Submission(document=job_document()) for _ in range(count)],
        viewer=make_viewer(username),
        submit_context=ground_of(username),
        now=NOW,
    )


@pytest.mark.django_db
class TestLimits:
    """One person and one tenant."""

    def test_a_person_has_no_more_live_jobs_than_the_limit(self) -> None:
        world()
        set_cluster_limits(viewer=make_viewer("root"), limits=JobLimits(per_person=3))
        submit(2)

        with pytest.raises(JobLimitError) as refused:
            submit(2)

        (fault,) = refused.value.errors
        assert fault.message == (
            "alice has 2 live jobs; 2 more would exceed the limit of 3 per person."
        )
        assert "Stop jobs" in fault.remedy
        assert Job.objects.unscoped().count() == 2
        submit(1)
        submit(3, "lena")

    def test_jobs_that_have_ended_do_not_count(self) -> None:
        world()
        set_cluster_limits(viewer=make_viewer("root"), limits=JobLimits(per_person=2))
        submit(2)
        Job.objects.unscoped().update(state="stopped", finished_at=NOW)

        submit(2)

    def test_a_tenant_has_no_more_live_jobs_than_the_limit(self) -> None:
        vision = world()
        root = make_viewer("root")
        limits = JobLimits(per_tenant=3)
        set_tenant_limits(viewer=root, tenant_id=vision.pk, name="vision", limits=limits)
        submit(2)

        with pytest.raises(JobLimitError, match="vision has 2 live jobs"):
            submit(2, "lena")

    def test_the_narrowest_limit_of_a_person_holds(self) -> None:
        vision = world()
        root, lena = make_viewer("root"), make_viewer("lena")
        alice = Membership.objects.unscoped().get(user__username="alice")
        set_cluster_limits(viewer=root, limits=JobLimits(per_person=1))
        limits = JobLimits(per_person=2)
        set_tenant_limits(viewer=lena, tenant_id=vision.pk, name="vision", limits=limits)
        set_member_limit(viewer=lena, member=alice, per_person=4)
        submit(4)

        with pytest.raises(JobLimitError, match="limit of 4"):
            submit(1)
        with pytest.raises(JobLimitError, match="limit of 2"):
            submit(3, "lena")
        (found,) = job_limits_of_members([alice])
        (tenant,) = job_limits_of_tenants([vision])
        assert (found.per_person.value, found.per_person.source, found.live) == (4, "member", 4)
        assert (tenant.per_person.value, tenant.per_person.source, tenant.live) == (2, "tenant", 4)
        assert (tenant.per_tenant.value, tenant.per_tenant.source) == (30_000, "built-in")
        assert cluster_job_limits().per_person.own == 1

    def test_clones_sweeps_and_arrays_count_like_submits(self) -> None:
        world()
        set_cluster_limits(viewer=make_viewer("root"), limits=JobLimits(per_person=2))
        (job,) = submit(1)
        viewer, submit_context = make_viewer("alice"), ground_of("alice")
        array = job_document(
            gang=False, roles={"worker": {"instances": 2, "devices": 1, "command": "true"}}
        )
        acts: tuple[Callable[[], object], ...] = (
            lambda: submit_sweep(
                document=job_document(),
                grid={"lr": ("1", "2")},
                max_parallel=None,
                viewer=viewer,
                submit_context=submit_context,
                now=NOW,
            ),
            lambda: submit_job(
                submission=Submission(document=array),
                viewer=viewer,
                submit_context=submit_context,
                now=NOW,
            ),
        )

        for act in acts:
            with pytest.raises(JobLimitError):
                act()
        clone_job(job=job, viewer=viewer, submit_context=submit_context, now=NOW)
        with pytest.raises(JobLimitError):
            clone_job(job=job, viewer=viewer, submit_context=submit_context, now=NOW)
        assert Job.objects.unscoped().count() == 2

    def test_leads_set_limits_of_people_and_admins_that_of_the_tenant(self) -> None:
        vision = world()
        lena, alice = make_viewer("lena"), make_viewer("alice")

        def set_(viewer: Any, **limits: int) -> None:
            wanted = JobLimits(**limits)
            set_tenant_limits(viewer=viewer, tenant_id=vision.pk, name="vision", limits=wanted)

        set_(lena, per_person=5)
        for act in (
            lambda: set_(lena, per_tenant=5),
            lambda: set_(alice, per_person=5),
            lambda: set_cluster_limits(viewer=lena, limits=JobLimits(per_person=5)),
        ):
            with pytest.raises(ForbiddenError):
                act()
        for wrong in (0, -1, 10**9):
            with pytest.raises(InvalidError):
                set_(lena, per_person=wrong)

        assert JobLimit.objects.get().per_person == 5
        row = AuditEntry.objects.unscoped().get(action="job_limit.update")
        assert (row.object_name, row.after) == ("vision", {"per_person": 5})


@pytest.mark.usefixtures("real_database")
def test_two_bulks_at_once_do_not_exceed_the_limit() -> None:
    world()
    set_cluster_limits(viewer=make_viewer("root"), limits=JobLimits(per_person=25))
    submit(3)  # so that the process knows a bound

    outcomes = at_once(*[lambda: submit(10)] * 4)

    refused = [outcome for outcome in outcomes if isinstance(outcome, JobLimitError)]
    assert len(refused) == 2, outcomes
    assert Job.objects.unscoped().count() == 23


@pytest.mark.usefixtures("real_database")
def test_a_bound_that_a_process_remembers_never_lets_too_many_in() -> None:
    world()
    set_cluster_limits(viewer=make_viewer("root"), limits=JobLimits(per_person=12))
    submit(5)
    submit(5)
    Job.objects.unscoped().filter(pk__in=[job.pk for job in Job.objects.unscoped()[:4]]).update(
        state="stopped", finished_at=NOW
    )
    submit(6)

    with pytest.raises(JobLimitError, match="12 live jobs"):
        submit(1)
