"""Jobs on nodes in memory, from the rows to the rows."""

from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import FailureClass, JobState
from scheduling.enums import MemberStep
from scheduling.jobs.models import Job, JobSecret
from scheduling.runs.models import Lease
from scheduling.runs.services.stopping import preempt_job, stop_job
from tenants.viewers import Viewer
from tessera import protocol
from tests.workers.node_service.conftest import World, wait_for
from workers.models import LogStream
from workers.transports.base import PrepareError


def test_a_job_runs_succeeds_and_leaves_its_log(world: World) -> None:
    world.start()

    job = world.submit("echo hello")
    world.wait_for_state(job, JobState.SUCCEEDED)

    (member,) = world.members(job)
    wait_for(lambda: LogStream.objects.filter(member=member, closed=True).exists())
    assert world.logs(job) == b"hello\n"
    assert (member.step, member.exit_code) == (MemberStep.EXITED, 0)
    assert member.started_at is not None
    assert not Lease.objects.filter(released_at=None).exists()
    wait_for(lambda: not world.node_of(member).runs)


def test_a_gang_starts_when_all_its_nodes_are_prepared(world: World) -> None:
    world.start()

    job = world.submit("sleep 60", worker={"instances": 2, "devices": 8})
    world.wait_for_state(job, JobState.RUNNING)

    members = world.members(job)
    assert len({member.node_id for member in members}) == 2
    for member in members:
        names = [name for name, _ in world.node_of(member).asked if name in ("prepare", "go")]
        assert names == ["prepare", "go"]
    environment = [world.run_of(m).preparation.run.env for m in members]
    assert [e["RANK"] for e in environment] == ["0", "1"]
    assert {e["WORLD_SIZE"] for e in environment} == {"2"}
    assert {e["MASTER_ADDR"] for e in environment} == {members[0].node.host}
    assert {e["MASTER_PORT"] for e in environment} == {str(members[0].attempt.port)}


def test_a_gang_does_not_go_before_the_slowest_node_is_prepared(world: World) -> None:
    world.start()
    slow = world.nodes["node-2"]
    wait_for(lambda: Node.objects.filter(probed_at__isnull=False).count() == 3)
    slow.reply_seconds = 0.4

    job = world.submit("sleep 60", worker={"instances": 2, "devices": 8})
    world.wait_for_state(job, JobState.RUNNING)

    order = world.asked("go")
    assert len(order) == 2
    assert {world.run_of(m).starts for m in world.members(job)} == {1}


def test_a_job_that_fails_has_its_exit_code_and_class(world: World) -> None:
    world.start()

    job = world.submit("exit 7")
    world.wait_for_state(job, JobState.FAILED)

    job.refresh_from_db()
    assert (job.exit_code, job.failure_class) == (7, FailureClass.USER)


def test_one_failed_preparation_cancels_the_gang_and_excludes_the_node(world: World) -> None:
    world.nodes["node-1"].refuse_prepare = PrepareError("disk-full", "no space", protocol.NODE)
    world.start()

    job = world.submit("sleep 60", worker={"instances": 2, "devices": 8})
    world.wait_for_state(job, JobState.QUEUED)

    job.refresh_from_db()
    assert job.excluded_nodes == ["node-1"]
    assert job.failures == {"node": 1}
    assert not any(run.starts for node in world.nodes.values() for run in node.runs.values())
    wait_for(lambda: not any(node.runs for node in world.nodes.values()))
    assert not Lease.objects.filter(released_at=None).exists()


def test_a_run_prepared_by_an_older_version_is_prepared_again(world: World) -> None:
    node = world.nodes["node-1"]
    node.refuse_prepare_once = PrepareError("spec-differs", "prepared otherwise")
    for other in ("node-2", "node-3"):
        world.nodes[other].reachable = False
    Node.objects.exclude(name="node-1").update(state="down", contact="down")
    world.start()

    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)

    names = [name for name, _ in node.asked if name in ("prepare", "cancel", "go")]
    assert names == ["prepare", "cancel", "prepare", "go"]


def test_a_running_job_is_stopped(world: World) -> None:
    world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)

    stop_job(
        job=Job.objects.unscoped().get(pk=job.pk),
        viewer=Viewer.system("tests"),
        now=timezone.now(),
    )
    world.wait_for_state(job, JobState.STOPPED)

    (member,) = world.members(job)
    assert member.exit_cause == protocol.CAUSE_STOPPED
    assert not Lease.objects.filter(released_at=None).exists()


def test_a_job_is_stopped_while_a_node_still_prepares_it(world: World) -> None:
    world.start()
    wait_for(lambda: Node.objects.filter(probed_at__isnull=False).count() == 3)
    for node in world.nodes.values():
        node.reply_seconds = 0.3
    job = world.submit("sleep 60")
    wait_for(lambda: world.members(job)[0].step == MemberStep.PREPARING)

    stop_job(
        job=Job.objects.unscoped().get(pk=job.pk),
        viewer=Viewer.system("tests"),
        now=timezone.now(),
    )
    world.wait_for_state(job, JobState.STOPPED)

    assert not any(run.starts for node in world.nodes.values() for run in node.runs.values())
    wait_for(lambda: not any(node.runs for node in world.nodes.values()))


def test_a_preempted_job_leaves_and_runs_again_in_a_new_attempt(world: World) -> None:
    world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)

    preempt_job(job_id=job.pk, for_job=job.pk, rule="for the test", now=timezone.now())
    world.wait_for_state(job, JobState.QUEUED)
    world.run_round()
    world.wait_for_state(job, JobState.RUNNING)

    assert [attempt.number for attempt in world.attempts(job)] == [1, 2]
    assert world.asked("stop") == [world.run_id(world.members(job)[0])]


def test_a_secret_that_cannot_be_read_fails_its_job_and_no_other(world: World) -> None:
    broken = world.submit("sleep 60", worker={"secrets": {"token": "s3cr3t"}})
    assert JobSecret.objects.filter(job=broken).update(sealed=b"sealed with another key") == 1
    whole = world.submit("true")

    world.start()

    world.wait_for_state(whole, JobState.SUCCEEDED)
    wait_for(lambda: broken.pk and world.attempts(broken)[0].outcome == "failed")
    assert world.attempts(broken)[0].failure_class == FailureClass.PLATFORM


def test_many_short_jobs_all_succeed_and_leave_nothing(world: World) -> None:
    world.start()
    jobs = [world.submit("echo x") for _ in range(24)]

    for job in jobs:
        world.wait_for_state(job, JobState.SUCCEEDED)

    wait_for(lambda: LogStream.objects.filter(closed=True).count() == 24)
    assert not any(node.runs for node in world.nodes.values())
    assert {world.logs(job) for job in jobs} == {b"x\n"}
