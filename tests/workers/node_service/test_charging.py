"""A job is charged from its start to its end on its node, whoever was watching meanwhile."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Lease, Member
from scheduling.runs.services import attempts
from scheduling.runs.services.stopping import stop_job
from scheduling.usage.queries.device_hours import hours_of_jobs
from tenants.viewers import Viewer
from tests.workers.node_service.conftest import World, wait_for
from workers.transports.base import PrepareError

TWO_HOURS = timedelta(hours=2)


def began(job: Job, ago: timedelta) -> datetime:
    """Move the start of a running job into the past."""
    at = timezone.now() - ago
    attempt = Attempt.objects.filter(job=job)
    attempt.update(created_at=at, running_at=at)
    Member.objects.filter(attempt__job=job).update(started_at=at)
    Lease.objects.filter(job=job).update(taken_at=at)
    return at


def charged(job: Job) -> float:
    """Device-seconds of a job, by its leases and by its row, which agree."""
    by_leases = hours_of_jobs([job.pk], now=timezone.now())[job.pk]
    row = Job.objects.unscoped().get(pk=job.pk)
    assert row.gpu_seconds == pytest.approx(3600 * (by_leases.gpu + by_leases.slot), abs=0.01)
    return row.gpu_seconds


@pytest.mark.parametrize("ahead", [0.0, 7200.0, -7200.0])
def test_an_outage_of_the_service_is_not_charged_whatever_the_node_takes_for_the_time(
    world: World, ahead: float
) -> None:
    for node in world.nodes.values():
        node.clock_ahead = ahead
    first = world.start()
    job = world.submit("sleep 60", worker={"devices": 2})
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    assert member.started_at is not None
    assert abs(member.started_at - timezone.now()) < timedelta(seconds=30)
    first.stop()
    began(job, TWO_HOURS)

    node = world.node_of(member)
    node.clock_ahead -= 3600  # it ends an hour ago
    node.finish(world.run_id(member), 0)
    node.clock_ahead += 3600
    world.start("service-2")
    world.wait_for_state(job, JobState.SUCCEEDED)

    assert charged(job) == pytest.approx(2 * 3600, abs=2 * 5)
    (attempt,) = world.attempts(job)
    (member,) = world.members(job)
    assert attempt.ended_at == member.exited_at
    assert attempt.ended_at is not None
    assert timezone.now() - attempt.ended_at > timedelta(minutes=59)


def test_each_member_of_a_gang_is_charged_for_its_own_devices(world: World) -> None:
    first = world.start()
    job = world.submit("sleep 60", worker={"instances": 2, "devices": 8})
    world.wait_for_state(job, JobState.RUNNING)
    one, other = world.members(job)
    first.stop()
    began(job, TWO_HOURS)

    for member, ago in ((one, 3600), (other, 1800)):
        node = world.node_of(member)
        node.clock_ahead = -ago
        node.finish(world.run_id(member), 0)
        node.clock_ahead = 0
    world.start("service-2")
    world.wait_for_state(job, JobState.SUCCEEDED)

    assert charged(job) == pytest.approx(8 * 3600 + 8 * 5400, abs=16 * 5)


def test_a_job_that_is_stopped_before_its_go_is_free(world: World) -> None:
    job = world.submit("sleep 60")
    stop_job(job=job, viewer=Viewer.system("tests"), now=timezone.now() + TWO_HOURS)

    assert world.state(job) is JobState.STOPPED
    assert charged(job) == 0


def test_a_failed_preparation_is_free(world: World) -> None:
    for node in world.nodes.values():
        node.refuse_prepare = PrepareError("no-image", "there is no such image", "user")
    world.start()
    job = world.submit("sleep 60")
    wait_for(lambda: world.state(job) is JobState.FAILED)

    assert charged(job) == 0


def test_a_lost_member_is_charged_up_to_the_last_confirmation_of_its_node(world: World) -> None:
    first = world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    first.stop()
    begun = began(job, TWO_HOURS)
    (member,) = world.members(job)
    Member.objects.filter(pk=member.pk).update(lease_renewed_at=begun + timedelta(minutes=30))

    attempts.mark_lost(member_id=member.pk, message="declared dead", now=timezone.now())

    assert charged(job) == pytest.approx(1800, abs=0.01)


def test_a_node_cannot_charge_more_than_was_observed_nor_less_than_nothing(world: World) -> None:
    first = world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    first.stop()
    node = world.node_of(member)

    node.clock_ahead = -7200  # set back while the job runs, and again before anybody looks
    node.finish(world.run_id(member), 0)
    node.clock_ahead = 0
    world.start("service-2")
    world.wait_for_state(job, JobState.SUCCEEDED)

    (member,) = world.members(job)
    assert member.exited_at == member.started_at
    assert charged(job) == 0
