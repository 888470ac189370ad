"""Live jobs are read as text and parsed once; what comes out is what the rows say."""

import gc
from datetime import timedelta
from typing import Never

import pytest

from scheduling.core.values import ClusterSnapshot
from scheduling.jobs.models import Job, JobDependency, Sweep
from scheduling.rounds.services import rounds
from scheduling.rounds.snapshot import RoundConfig, take_snapshot
from tenants.models import Membership
from tests.factories.cluster import NOW
from tests.factories.scheduling import make_two_tenants, start, submit

pytestmark = pytest.mark.django_db
CONFIG = RoundConfig(round_seconds=10.0, images_required=False, using="default")


def test_a_waiting_job_is_read_with_every_field_of_its_row() -> None:
    make_two_tenants()
    first = submit()
    job = submit()
    JobDependency.objects.create(job=job, after=first)
    Job.objects.unscoped().filter(pk=job.pk).update(
        held=True,
        not_before=NOW + timedelta(seconds=1.25),
        backoff_until=NOW + timedelta(seconds=2),
        excluded_nodes=["node-1"],
        reason={"waiting_for": [7]},
    )

    read = next(found for found in _reading().queued if found.id == job.pk)

    assert (read.owner_name, read.held, read.priority) == ("alice", True, job.priority)
    assert read.submitted == job.submitted_at.timestamp()
    assert read.not_before == NOW.timestamp() + 1.25
    assert read.backoff_until == NOW.timestamp() + 2.0
    assert (read.after, read.after_failed) == ((first.pk,), ())
    assert (read.excluded_nodes, read.waiting_for) == (("node-1",), (7,))


def test_a_running_job_is_read_with_its_leaves_and_since_when() -> None:
    make_two_tenants()
    job = submit(devices=2)
    Membership.objects.unscoped().filter(user=job.owner).update(max_devices=5)
    start(job)
    job.refresh_from_db()

    (read,) = _reading().holding

    assert (read.id, len(read.members), read.devices) == (job.pk, 1, 2)
    assert read.since == job.state_since.timestamp()
    assert read.user_cap == 5


def test_a_job_that_has_not_changed_is_the_same_value_in_the_next_round() -> None:
    make_two_tenants()
    still, moved = submit(), submit()
    before = {job.id: job for job in _reading().queued}

    Job.objects.unscoped().filter(pk=moved.pk).update(priority=77)
    after = {job.id: job for job in _reading().queued}

    assert after[still.pk] is before[still.pk]
    assert (before[moved.pk].priority, after[moved.pk].priority) == (moved.priority, 77)


def test_a_job_whose_dependency_has_ended_is_read_anew() -> None:
    make_two_tenants()
    first, job = submit(), submit()
    JobDependency.objects.create(job=job, after=first)
    _reading()

    Job.objects.unscoped().filter(pk=first.pk).update(state="failed", finished_at=NOW)

    (read,) = _reading().queued
    assert (read.id, read.after, read.after_failed) == (job.pk, (), (first.pk,))


def test_only_a_job_that_its_sweep_holds_waits_for_its_turn() -> None:
    make_two_tenants()
    alone, first, last = submit(), submit(), submit()
    Job.objects.unscoped().filter(pk__in=[alone.pk, last.pk]).update(held=True)
    Job.objects.unscoped().exclude(pk=alone.pk).update(labels={"sweep": "lr-1"})
    Sweep.objects.create(
        tenant_id=first.tenant_id, virtual_cluster_id=first.virtual_cluster_id,
        owner_id=first.owner_id, name="lr", label="lr-1", parameters={}, max_parallel=1, jobs=2,
        first_job=first.pk, last_job=last.pk, is_open=True, created_at=NOW,
    )  # fmt: skip

    turns = {job.id: job.turn_of for job in _reading().queued}

    assert turns == {alone.pk: None, first.pk: None, last.pk: 1}


def test_the_collector_is_back_after_a_round_that_fails() -> None:
    seen = []

    def fail(*_: object) -> Never:
        seen.append(gc.isenabled())
        raise RuntimeError("the disk is full")

    make_two_tenants()
    submit()
    with pytest.raises(RuntimeError):
        rounds.run_round(now=lambda: NOW, config=CONFIG, store=fail)

    assert seen == [False]
    assert gc.isenabled()


def _reading() -> ClusterSnapshot:
    return take_snapshot(number=1, now=NOW, config=CONFIG).snapshot
