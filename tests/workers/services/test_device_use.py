"""How busy and how full devices are, summed up for the policies that look at it."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.clusters.models import VirtualCluster
from scheduling.jobs.models import Job
from scheduling.rounds.snapshot import take_snapshot
from scheduling.runs.models import Attempt, AttemptUse, Member
from tests.factories.attempts import run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import CONFIG, run_round
from workers.models import NodeTelemetry
from workers.services.device_use import sum_up_use

pytestmark = pytest.mark.django_db
M = timedelta(minutes=1)


@pytest.fixture
def job() -> Job:
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2, policy="srtf")
    job = make_job(worker={"devices": 2})
    run_round(NOW)
    run_members(job)
    return job


def tell(job: Job, minute: int, busy: list[float | None], memory: list[int | None]) -> None:
    """One minute of the node; its other devices are as busy as can be."""
    member = Member.objects.get(attempt__job=job)
    shares: list[float | None] = [1.0] * 8
    used: list[int | None] = [10**12] * 8
    for index, share, n in zip(member.devices, busy, memory, strict=True):
        shares[index], used[index] = share, n
    NodeTelemetry.objects.create(
        node_id=member.node_id, at=NOW + minute * M, utilisation=shares, memory_bytes=used
    )


def known(job: Job):
    return take_snapshot(number=9, now=NOW + 9 * M, config=CONFIG).snapshot.known[job.pk].facts


def test_policies_are_told_how_busy_the_devices_of_a_job_are(job: Job) -> None:
    tell(job, 0, [0.5, 0.25], [100, 100])
    tell(job, 1, [0.75, None], [100, 100])

    assert sum_up_use(now=NOW + 5 * M) == 1

    assert known(job).util == pytest.approx((0.375 + 0.75) / 2)


def test_policies_are_told_the_most_memory_that_one_device_had_in_use(job: Job) -> None:
    tell(job, 0, [0.5, 0.5], [100, 300])
    tell(job, 1, [0.5, 0.5], [200, None])

    sum_up_use(now=NOW + 5 * M)

    assert known(job).memory_peak == 300


def test_each_minute_counts_once_and_only_when_every_node_has_told_it(job: Job) -> None:
    tell(job, 0, [1.0, 1.0], [1, 1])
    sum_up_use(now=NOW + 2 * M)
    early = AttemptUse.objects.count()
    sum_up_use(now=NOW + 3 * M)
    sum_up_use(now=NOW + 4 * M)
    tell(job, 3, [0.0, 0.0], [5, 1])

    sum_up_use(now=NOW + 6 * M)

    use = AttemptUse.objects.get()
    assert early == 0
    assert (use.minutes, use.busy, use.memory_peak) == (2, 0.5, 5)
    assert use.until == NOW + 4 * M


def test_nothing_is_known_where_nobody_tells(job: Job) -> None:
    tell(job, 0, [None, None], [None, None])

    sum_up_use(now=NOW + 5 * M)

    assert (known(job).util, known(job).memory_peak) == (None, None)


def test_the_newest_run_reports_how_busy_and_all_of_them_how_full(job: Job) -> None:
    old = Attempt.objects.get(job=job)
    AttemptUse.objects.create(attempt=old, until=NOW, minutes=3, busy=0.9, memory_peak=700)
    Attempt.objects.filter(pk=old.pk).update(ended_at=NOW + M)
    new = Attempt.objects.create(
        job=job, number=2, uid="2" * 32, round_number=2, port=2, created_at=NOW + M
    )
    AttemptUse.objects.create(attempt=new, until=NOW, minutes=1, busy=0.1, memory_peak=200)

    assert (known(job).util, known(job).memory_peak) == (0.1, 700)


def test_where_policies_look_at_gangs_alone_nothing_is_summed_up(job: Job) -> None:
    VirtualCluster.objects.unscoped().update(policy="fifo")
    tell(job, 0, [0.5, 0.5], [100, 100])

    with CaptureQueriesContext(connection) as asked:
        assert sum_up_use(now=NOW + 5 * M) == 0

    assert len(asked) == 1
    VirtualCluster.objects.unscoped().update(shadows=[{"policy": "sia", "policy_args": {}}])
    assert sum_up_use(now=NOW + 5 * M) == 1
