"""Each job's wait for its first start is counted once, and stays counted."""

from datetime import timedelta

import pytest

from scheduling.clusters.models import VirtualCluster
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Member, WaitTally
from scheduling.runs.queries.tallies import waits_of
from scheduling.runs.services import attempts
from scheduling.runs.services.tallies import add_waits, count_first_starts
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def vc() -> VirtualCluster:
    make_cluster()
    make_priority_classes()
    return make_virtual_cluster(cells=2)


def run(job: Job, seconds: float) -> None:
    """Start every member of a job that a round has admitted, so long after ``NOW``."""
    now = NOW + timedelta(seconds=seconds)
    for member in Member.objects.filter(attempt__job=job):
        attempts.mark_preparing(member_ids=[member.pk], now=now)
        attempts.mark_prepared(member_id=member.pk, now=now)
        attempts.mark_running(member_id=member.pk, pid=7, boot_id="boot", started_at=now, now=now)


def test_a_job_that_runs_for_the_first_time_is_counted_in_its_class(vc: VirtualCluster) -> None:
    job = make_job()
    submitted = NOW - timedelta(seconds=30)
    Job.objects.unscoped().filter(pk=job.pk).update(submitted_at=submitted)
    run_round()

    run(job, 3.5)

    assert Attempt.objects.get(job=job).running_at is not None
    (row,) = WaitTally.objects.values_list("virtual_cluster", "wait_class", "count", "seconds")
    assert row == (vc.pk, 5, 1, 33.5)


def test_a_job_that_has_run_before_is_not_counted_again() -> None:
    job = make_job()
    Job.objects.unscoped().filter(pk=job.pk).update(first_started_at=NOW - timedelta(days=1))

    count_first_starts([job.pk], NOW)

    assert not WaitTally.objects.exists()


def test_counts_grow_and_stay_when_jobs_are_forgotten(vc: VirtualCluster) -> None:
    job = make_job()
    add_waits([(vc.pk, 0.5), (vc.pk, -2.0), (vc.pk, 99_999.0)])
    add_waits([(vc.pk, 0.5)])

    Job.objects.unscoped().filter(pk=job.pk).delete()

    found = waits_of([vc.pk])[vc.pk]
    assert (found.within[0], found.within[-1]) == (("1", 3), ("+Inf", 4))
    assert found.seconds == 100_000.0
