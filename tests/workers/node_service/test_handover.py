"""Checkpoints follow their jobs from node to node, verified, or stay behind with a word."""

import dataclasses
import hashlib

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.clusters.services.nodes import drain_node
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job, JobEvent
from scheduling.runs.models import Attempt, Member
from scheduling.runs.services.progress import record_training_events
from scheduling.runs.services.stopping import stop_job
from tenants.viewers import Viewer
from tests.support.fake_transport import FakeNode
from tests.workers.node_service.conftest import World, wait_for
from workers.node_service import handover
from workers.services.preparation_inputs import last_saved
from workers.transports.base import Saved

STATE = b"all that was learnt"
SHA256 = hashlib.sha256(STATE).hexdigest()


def saving_job(world: World, content: bytes = STATE, size: int = len(STATE)) -> tuple[Job, Member]:
    """A running job that has told of a checkpoint on its node."""
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    saved = Saved(name="step-000000000007", step=7, sha256=SHA256, size=size)
    world.node_of(member).saved["here", str(job.pk)] = (saved, content)
    facts = {"step": 7, "sha256": SHA256, "bytes": size}
    record_training_events(
        job_id=job.pk, attempt=1, notes=[("checkpoint", "saved", facts)], now=timezone.now()
    )
    return job, member


def move_away(world: World, job: Job, member: Member) -> FakeNode:
    """Drain the job's node, and wait until it runs on another one, which is returned."""
    viewer = Viewer.system("admin")
    drain_node(viewer=viewer, node_id=member.node_id, reason="disks", now=timezone.now())
    world.wait_for_state(job, JobState.QUEUED)
    Job.objects.unscoped().filter(pk=job.pk).update(backoff_until=None)
    world.run_round()
    world.wait_for_state(job, JobState.RUNNING)
    moved = world.members(job)[-1]
    assert moved.node_id != member.node_id
    return world.node_of(moved)


def told(job: Job, kind: str) -> str:
    wait_for(lambda: JobEvent.objects.filter(job=job, kind=kind).exists(), lambda: kind)
    return JobEvent.objects.get(job=job, kind=kind).text


def test_a_checkpoint_is_there_before_the_job_starts_on_another_node(world: World) -> None:
    world.start()
    job, member = saving_job(world)

    node = move_away(world, job, member)

    assert node.saved["here", str(job.pk)][1] == STATE
    asked = [name for name, _ in node.asked if name in ("put_saved", "prepare", "go")]
    assert asked == ["put_saved", "prepare", "go"]
    text = told(job, "checkpoint-moved")
    assert text == "The checkpoint of step 7 was copied from node-1 (19 bytes, verified)."


@pytest.mark.parametrize(
    ("content", "size", "most", "reason"),
    [
        (b"all that was torn..", 19, 1 << 20, "does not have this SHA-256"),
        (STATE, 19, 18, "19 bytes; the limit is 18"),
        (STATE[:9], 19, 1 << 20, "does not have this SHA-256"),
    ],
)
def test_what_cannot_be_brought_is_reported_and_the_job_runs_all_the_same(
    world: World, content: bytes, size: int, most: int, reason: str
) -> None:
    world.settings = dataclasses.replace(world.settings, transfer_bytes=most)
    world.start()
    job, member = saving_job(world, content, size)

    node = move_away(world, job, member)

    assert ("here", str(job.pk)) not in node.saved
    text = told(job, "checkpoint-left")
    assert text.startswith("The checkpoint of step 7 was not copied from node-1: ")
    assert reason in text


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(world: World) -> None:
    world.start()
    job, member = saving_job(world, content=b"all that was torn..")
    before = b"what was learnt until then"
    saved = Saved(
        name="step-000000000003", step=3, sha256=hashlib.sha256(before).hexdigest(), size=26
    )
    world.node_of(member).earlier["here", str(job.pk)] = (saved, before)

    node = move_away(world, job, member)

    assert node.saved["here", str(job.pk)] == (saved, before)
    assert "step 3 was copied from node-1" in told(job, "checkpoint-moved")
    assert told(job, "checkpoint-broken").startswith(
        "The checkpoint step-000000000007 on node-1 is damaged: "
    )


def test_a_checkpoint_that_takes_too_long_stays_behind(world: World) -> None:
    world.settings = dataclasses.replace(world.settings, transfer_seconds=0.05)
    world.start()
    job, member = saving_job(world)
    world.node_of(member).keeps_pieces = True

    node = move_away(world, job, member)

    assert ("here", str(job.pk)) not in node.saved
    assert told(job, "checkpoint-left").startswith(
        "The checkpoint of step 7 was not copied from node-1: the copy takes too long."
    )


def test_a_job_that_is_to_leave_again_waits_for_no_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pieces of the transfer are over sooner than the usual pause.
    monkeypatch.setattr(handover, "LOOK_EVERY_SECONDS", 0.0)
    world.start()
    job, member = saving_job(world)
    gone = world.node_of(member)
    gone.keeps_pieces = True
    viewer = Viewer.system("admin")
    drain_node(viewer=viewer, node_id=member.node_id, reason="disks", now=timezone.now())
    world.wait_for_state(job, JobState.QUEUED)
    Job.objects.unscoped().filter(pk=job.pk).update(backoff_until=None)
    world.run_round()
    wait_for(lambda: any(name == "read_saved" for name, _ in gone.asked), lambda: gone.asked)

    stop_job(job=Job.objects.unscoped().get(pk=job.pk), viewer=viewer, now=timezone.now())
    gone.keeps_pieces = False

    world.wait_for_state(job, JobState.STOPPED)
    assert "the job is being preempted again" in told(job, "checkpoint-left")


def test_many_jobs_that_go_on_are_looked_up_in_a_few_queries(world: World) -> None:
    world.start()
    jobs = [saving_job(world) for _ in range(3)]
    attempts = [
        Attempt.objects.create(
            job=job,
            number=2,
            uid=f"again{job.pk}",
            round_number=1,
            port=1,
            created_at=timezone.now(),
            ended_at=timezone.now(),
        )
        for job, _ in jobs
    ]

    with CaptureQueriesContext(connection) as asked:
        found = last_saved(attempts)

    assert len(asked) == 3
    assert {found[one.pk].sha256 for one in attempts} == {SHA256}
    assert {found[one.pk].node_id for one in attempts} == {m.node_id for _, m in jobs}


def test_a_node_that_does_not_answer_keeps_its_checkpoint_and_nobody_waits(world: World) -> None:
    world.start()
    job, member = saving_job(world)
    viewer = Viewer.system("admin")
    drain_node(viewer=viewer, node_id=member.node_id, reason="disks", now=timezone.now())
    world.wait_for_state(job, JobState.QUEUED)
    gone = world.node_of(member)
    gone.reachable = False
    gone.drop_connections()

    Job.objects.unscoped().filter(pk=job.pk).update(backoff_until=None)
    world.run_round()
    world.wait_for_state(job, JobState.RUNNING)

    assert "the node is not reachable from this host" in told(job, "checkpoint-left")
