"""Jobs that have to leave while something fails: nothing saved is lost, and nothing runs twice."""

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.clusters.services.nodes import declare_node_dead
from scheduling.core.lifecycle import JobState, PreemptionRule
from scheduling.jobs.models import Job
from scheduling.runs.models import Preemption
from scheduling.runs.services.progress import Leading, add_attempt_progress, record_training_events
from scheduling.runs.services.stopping import preempt_job
from tenants.viewers import Viewer
from tests.support.clocks import choose_time
from tests.workers.node_service.conftest import World, wait_for

SHA256 = "ab" * 32


def training(world: World, *, saved: int, done: int) -> Job:
    """A running job that has told of so many steps, and saved some of them."""
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    facts = {"step": saved, "sha256": SHA256}
    record_training_events(
        job_id=job.pk, attempt=1, notes=[("checkpoint", "saved", facts)], now=timezone.now()
    )
    leading = Leading(seconds=done / 10, steps=done, step=done - 1, loss=None)
    add_attempt_progress(attempt_id=world.attempts(job)[0].pk, samples=0.0, leading=leading)
    return job


def resize(job: Job) -> None:
    assert preempt_job(
        job_id=job.pk,
        for_job=0,
        rule="Its policy gives it 2 devices",
        cause=PreemptionRule.RESIZE,
        now=timezone.now(),
    )


def run_again(world: World, job: Job) -> None:
    world.wait_for_state(job, JobState.QUEUED)
    Job.objects.unscoped().filter(pk=job.pk).update(backoff_until=None)
    world.run_round()
    world.wait_for_state(job, JobState.RUNNING)


def starts(world: World) -> list[int]:
    """How often each run on any node has been started."""
    return [run.starts for node in world.nodes.values() for run in node.runs.values()]


def test_a_preemption_goes_on_when_the_control_plane_comes_back(world: World) -> None:
    first = world.start()
    job = training(world, saved=90, done=100)
    first.stop()
    resize(job)
    assert world.asked("stop") == []

    world.start("service-2")
    run_again(world, job)

    receipt = Preemption.objects.get(job=job)
    assert (receipt.checkpoint_step, receipt.lost_steps, receipt.lost_seconds) == (90, 10, 1.0)
    assert len(world.asked("stop")) == 1
    assert max(starts(world)) == 1
    assert [attempt.ended_at is None for attempt in world.attempts(job)] == [False, True]


def test_a_node_that_is_lost_in_mid_resize_runs_nothing_twice(world: World) -> None:
    world.start()
    job = training(world, saved=100, done=100)
    (member,) = world.members(job)
    node, old = world.node_of(member), world.run_id(member)
    node.reachable = False
    node.drop_connections()
    wait_for(lambda: type(member.node).objects.get(pk=member.node_id).contact == "down")

    resize(job)
    world.run_round()
    assert world.state(job) is JobState.PREEMPTING, "its devices are given to nobody meanwhile"
    declare_node_dead(
        viewer=Viewer.system("admin"), node_id=member.node_id, reason="gone", now=timezone.now()
    )
    run_again(world, job)
    node.reachable = True

    wait_for(lambda: old not in node.runs or node.runs[old].status.exit is not None)
    assert world.members(job)[-1].node_id != member.node_id
    assert max(starts(world)) == 1
    receipt = Preemption.objects.get(job=job)
    assert (receipt.lost_steps, receipt.lost_seconds) == (0, 0.0)


@pytest.mark.parametrize("jump", [timedelta(days=-1), timedelta(days=1)])
def test_a_clock_that_jumps_neither_loses_work_nor_starts_anything_twice(
    world: World, monkeypatch: pytest.MonkeyPatch, jump: timedelta
) -> None:
    world.start()
    job = training(world, saved=90, done=100)
    resize(job)
    real = timezone.now

    choose_time(monkeypatch, lambda: real() + jump)
    world.wait_for_state(job, JobState.QUEUED)
    Job.objects.unscoped().filter(pk=job.pk).update(backoff_until=None)
    world.run_round()
    world.wait_for_state(job, JobState.RUNNING)

    receipt = Preemption.objects.get(job=job)
    assert (receipt.lost_steps, receipt.lost_seconds) == (10, 1.0)
    assert max(starts(world)) == 1
