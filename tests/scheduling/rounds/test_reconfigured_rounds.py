"""Quota that is taken away and given back while a job runs, seen by the rounds between."""

from datetime import timedelta

import pytest

from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job, JobEvent
from scheduling.runs.models import Attempt, Lease
from tests.factories.scheduling import (
    NOW,
    archive_vc,
    change_vc,
    make_two_tenants,
    run_round,
    start,
    submit,
)

pytestmark = pytest.mark.django_db

NODE = {"chain": "a-node", "level": "a-node", "count": 1}


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def promise(name, *cells):
    change_vc(name, cells=cells)


def later(seconds):
    return NOW + timedelta(seconds=seconds)


def virtual_cells(job):
    return set(
        Lease.objects.filter(job=job, released_at=None).values_list("virtual_cell", flat=True)
    )


def kinds(job):
    kept = {"guarantee_lost", "guarantee_regained"}
    rows = JobEvent.objects.filter(job=job, kind__in=kept).order_by("id")
    return list(rows.values_list("kind", flat=True))


def test_a_running_job_borrows_while_its_quota_is_away_and_is_guaranteed_when_it_is_back():
    job = submit(devices=8)
    start(job)
    devices = set(Lease.objects.filter(job=job).values_list("device_id", flat=True))
    assert all(virtual_cells(job))

    promise("vision-a")
    taken = run_round(later(10))
    quiet = run_round(later(20))
    after_loss = virtual_cells(job)
    promise("vision-a", NODE)
    given = run_round(later(30))

    job.refresh_from_db()
    assert (taken.rebound, quiet.rebound, given.rebound) == ((job.pk,), (), (job.pk,))
    assert after_loss == {""}
    assert all(virtual_cells(job))
    assert len(virtual_cells(job)) == 8
    assert kinds(job) == ["guarantee_lost", "guarantee_regained"]
    assert job.state == JobState.RUNNING
    held = Lease.objects.filter(job=job, released_at=None).values_list("device_id", flat=True)
    assert set(held) == devices
    assert Attempt.objects.filter(job=job).count() == 1
    assert not Attempt.objects.get(job=job).opportunistic


def test_a_job_that_lost_its_guarantee_leaves_only_when_its_devices_are_wanted():
    job = submit(devices=8)
    start(job)
    others = [submit("bob", devices=8) for _ in range(3)]

    promise("vision-a")
    promise("language-a", {**NODE, "count": 3})
    first = run_round(later(10))

    job.refresh_from_db()
    waiting = Job.objects.unscoped().get(pk=others[-1].pk)
    assert len(first.started) == 2
    assert first.preempted == (job.pk,)
    assert job.state == JobState.PREEMPTING
    assert waiting.reason_code == "waiting-victim-checkpoint"


def test_a_job_in_unused_quota_is_left_alone_when_other_quota_goes():
    job = submit(devices=1)
    start(job)

    promise("language-a")
    outcome = run_round(later(10))

    assert outcome.rebound == ()
    assert all(virtual_cells(job))


def test_rounds_go_on_beside_a_virtual_cluster_that_was_put_away():
    archive_vc("language-a")
    job = submit(devices=1, **{"class": "opportunistic"})

    start(job)

    assert virtual_cells(job) == {""}
