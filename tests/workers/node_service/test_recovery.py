"""Services that stop, freeze or share; nodes that go away and come back."""

import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import JobEventKind, JobState
from scheduling.enums import MemberStep, NodeState
from scheduling.jobs.services.lifecycle import apply_job_event
from scheduling.runs.models import Member
from scheduling.runs.services.stopping import stop_job
from tenants.viewers import Viewer
from tessera import protocol
from tests.support.fake_transport import FakeRun
from tests.workers.node_service.conftest import Frozen, World, wait_for
from workers.models import Heartbeat, NodeLease
from workers.transports.base import Preparation

STRAY = "00112233445566778899aabbccddeeff.worker.0"


def running(world: World, **changes: object) -> tuple:
    """A running job and its members."""
    job = world.submit("sleep 60", **changes)
    world.wait_for_state(job, JobState.RUNNING)
    return job, world.members(job)


def test_a_new_service_adopts_what_runs_and_starts_nothing_twice(world: World) -> None:
    first = world.start()
    job, (member,) = running(world)

    first.stop()
    world.start("service-2")
    wait_for(lambda: NodeLease.objects.filter(owner="service-2").count() == 3)
    world.node_of(member).finish(world.run_id(member), 0)

    world.wait_for_state(job, JobState.SUCCEEDED)
    assert len(world.asked("prepare")) == len(world.asked("go")) == 1


def test_what_ended_while_nobody_looked_has_its_right_end(world: World) -> None:
    first = world.start()
    job, (member,) = running(world)
    first.stop()

    world.node_of(member).write(world.run_id(member), log=b"last words\n")
    world.node_of(member).finish(world.run_id(member), 9)
    world.start("service-2")

    world.wait_for_state(job, JobState.FAILED)
    job.refresh_from_db()
    assert job.exit_code == 9
    wait_for(lambda: world.logs(job) == b"last words\n")


def test_orders_that_died_with_their_service_are_given_again(world: World) -> None:
    for node in world.nodes.values():
        node.reachable = False
    job = world.submit("sleep 60")
    Member.objects.update(step=MemberStep.PREPARING)
    for node in world.nodes.values():
        node.reachable = True

    world.start()

    world.wait_for_state(job, JobState.RUNNING)


def test_a_start_that_a_service_cancelled_and_could_not_tell_of_counts_as_stopped(
    world: World,
) -> None:
    for node in world.nodes.values():
        node.reachable = False
    job = world.submit("sleep 60")
    apply_job_event(job_id=job.pk, event=JobEventKind.DISPATCH, now=timezone.now())
    Member.objects.update(step=MemberStep.STARTING)
    job.refresh_from_db()
    stop_job(job=job, viewer=Viewer.system("tests"), now=timezone.now())
    for node in world.nodes.values():
        node.reachable = True

    world.start()

    world.wait_for_state(job, JobState.STOPPED)
    (attempt,) = world.attempts(job)
    assert (attempt.outcome, attempt.failure_class) == ("stopped", "")


def test_a_frozen_service_loses_its_nodes_and_reports_nothing_when_it_wakes(world: World) -> None:
    first = world.start()
    job, (member,) = running(world)
    epochs = dict(NodeLease.objects.values_list("node_id", "epoch"))

    frozen = Frozen(first)
    world.start("service-2")
    wait_for(lambda: NodeLease.objects.filter(owner="service-2").count() == 3)
    world.node_of(member).finish(world.run_id(member), 0)
    world.wait_for_state(job, JobState.SUCCEEDED)
    frozen.thaw()

    service = first.service
    assert service is not None
    # Both live now, so that the other may give one of them back: for a new term.
    wait_for(lambda: len(service.carried) < 3)
    now = dict(NodeLease.objects.values_list("node_id", "epoch"))
    assert all(now[node] > epoch for node, epoch in epochs.items())
    assert world.state(job) is JobState.SUCCEEDED
    assert len(world.asked("go")) == 1


def test_late_news_of_a_service_that_lost_its_node_are_dropped(world: World) -> None:
    from workers.services.node_reports import Exited
    from workers.services.turns import take_turn

    first = world.start()
    job, (member,) = running(world)
    first.stop()
    epochs = dict(NodeLease.objects.values_list("node_id", "epoch"))
    NodeLease.objects.update(owner="service-2")
    record = protocol.ExitRecord(cause="exited", failure="user", at=0.0, code=1)

    turn = take_turn(
        owner="service-1",
        epochs=epochs,
        news=[Exited(node_id=member.node_id, member_id=member.pk, record=record)],
        listening=list(epochs),
        busy=[],
        settings=world.settings,
        now=timezone.now(),
    )

    assert turn.carried == frozenset()
    assert world.state(job) is JobState.RUNNING


def test_a_run_is_removed_only_after_its_end_has_been_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers.services.node_reports import Exited

    written: list[float] = []
    write_all = Exited.write_all

    def fail_twice(news: list[Exited], now: datetime) -> None:
        written.append(time.monotonic())
        if len(written) <= 2:
            raise RuntimeError("a mistake of ours")
        write_all(news, now)

    world.start()
    job, (member,) = running(world)
    # A mistake of the product itself, in the thread of the service.
    monkeypatch.setattr(Exited, "write_all", fail_twice)
    world.node_of(member).finish(world.run_id(member), 7)
    wait_for(lambda: len(written) == 2)
    assert world.asked("remove") == []

    world.wait_for_state(job, JobState.FAILED)
    wait_for(lambda: world.run_id(member) not in world.node_of(member).runs)
    job.refresh_from_db()
    assert (job.exit_code, len(world.attempts(job))) == (7, 1)


def test_a_service_that_lost_its_node_does_not_remove_what_the_next_has_not_read(
    world: World,
) -> None:
    first = world.start()
    job, (member,) = running(world)
    NodeLease.objects.update(owner="service-2", expires_at=timezone.now() + timedelta(seconds=60))

    world.node_of(member).finish(world.run_id(member), 7)
    service = first.service
    assert service is not None
    wait_for(lambda: not service.carried)

    assert world.asked("remove") == []
    assert world.run_id(member) in world.node_of(member).runs
    assert world.state(job) is JobState.RUNNING


def test_two_services_share_the_nodes_and_one_takes_all_when_the_other_ends(world: World) -> None:
    first = world.start("service-1")
    wait_for(lambda: NodeLease.objects.filter(owner="service-1").count() == 3)

    world.start("service-2")
    wait_for(lambda: NodeLease.objects.filter(owner="service-2").exists())
    owners = list(NodeLease.objects.values_list("owner", flat=True))
    assert sorted(map(owners.count, {"service-1", "service-2"})) == [1, 2]

    first.stop()
    wait_for(lambda: NodeLease.objects.filter(owner="service-2").count() == 3)
    assert not Heartbeat.objects.filter(process="service-1").exists()


def test_a_gang_on_nodes_of_two_services_starts(world: World) -> None:
    world.start("service-1")
    world.start("service-2")
    wait_for(
        lambda: (
            set(NodeLease.objects.values_list("owner", flat=True)) == {"service-1", "service-2"}
            and NodeLease.objects.count() == 3
        )
    )

    job = world.submit("sleep 60", worker={"instances": 3, "devices": 8})

    world.wait_for_state(job, JobState.RUNNING)
    assert len(world.asked("go")) == 3


class TestNodesThatGoAway:
    """Unreachable is not dead."""

    def test_a_job_is_suspect_while_its_node_is_away_and_nothing_is_killed(
        self, world: World
    ) -> None:
        world.start()
        job, (member,) = running(world)
        node = world.node_of(member)

        node.reachable = False
        node.drop_connections()
        world.wait_for_state(job, JobState.SUSPECT)
        assert Node.objects.get(pk=member.node_id).state == NodeState.SUSPECT
        wait_for(lambda: Node.objects.get(pk=member.node_id).contact == NodeState.DOWN)
        node.reachable = True

        world.wait_for_state(job, JobState.RUNNING)
        assert Node.objects.get(pk=member.node_id).state == NodeState.READY
        assert world.asked("stop") == []
        assert world.run_of(member).starts == 1

    def test_a_slow_node_does_not_delay_the_others(self, world: World) -> None:
        world.start()
        wait_for(lambda: Node.objects.filter(probed_at__isnull=False).count() == 3)
        world.nodes["node-1"].reply_seconds = 600.0
        Node.objects.filter(name="node-1").update(held="cordoned", state="cordoned")

        jobs = [world.submit("true") for _ in range(5)]
        for job in jobs:
            world.wait_for_state(job, JobState.SUCCEEDED)

    def test_members_of_a_node_that_is_silent_beyond_the_fence_are_lost_and_run_elsewhere(
        self, world: World
    ) -> None:
        world.start()
        job, (member,) = running(world)
        node = world.node_of(member)
        node.reachable = False
        node.drop_connections()
        wait_for(lambda: Node.objects.get(pk=member.node_id).contact == NodeState.DOWN)
        assert world.state(job) is JobState.SUSPECT

        long_ago = timezone.now() - timedelta(hours=2)
        Member.objects.update(lease_renewed_at=long_ago, step_since=long_ago)
        Node.objects.filter(pk=member.node_id).update(last_contact_at=long_ago)
        world.wait_for_state(job, JobState.QUEUED)
        self._run_again_on_another_node(world, job, member)

        node.reachable = True
        wait_for(lambda: world.run_id(member) not in node.runs)
        assert world.state(job) is JobState.RUNNING

    def _run_again_on_another_node(self, world: World, job: object, member: Member) -> None:
        wait_for(lambda: self._placed(world, job, member))
        world.wait_for_state(job, JobState.RUNNING)  # type: ignore[arg-type]

    def _placed(self, world: World, job: object, member: Member) -> bool:
        world.run_round()
        members = world.members(job)  # type: ignore[arg-type]
        return len(members) == 2 and members[1].node_id != member.node_id

    def test_a_node_that_is_declared_dead_gives_its_members_back_at_once(
        self, world: World
    ) -> None:
        world.start()
        job, (member,) = running(world)
        world.node_of(member).reachable = False
        world.node_of(member).drop_connections()

        Node.objects.filter(pk=member.node_id).update(declared_dead_at=timezone.now())

        world.wait_for_state(job, JobState.QUEUED)

    def test_a_job_whose_node_goes_down_before_it_could_start_is_tried_elsewhere(
        self, world: World
    ) -> None:
        world.start()
        wait_for(lambda: Node.objects.filter(probed_at__isnull=False).count() == 3)
        for node in world.nodes.values():
            node.reachable = False
        job = world.submit("sleep 60")
        for node in world.nodes.values():
            node.drop_connections()

        world.wait_for_state(job, JobState.QUEUED)

        (attempt,) = world.attempts(job)
        assert attempt.failure_class == "node"


class TestRunsThatNobodyWants:
    """What is on a node and should not be."""

    @pytest.fixture
    def stray(self, world: World) -> FakeRun:
        return self.put(world, installation="here")

    @staticmethod
    def put(world: World, installation: str, phase: str = protocol.RUNNING) -> FakeRun:
        spec = protocol.RunSpec(
            run_id=STRAY,
            job_id="1",
            job_name="x",
            attempt=STRAY[:32],
            role="worker",
            rank=0,
            command="sleep 60",
            installation=installation,
        )
        status = protocol.RunStatus(run_id=STRAY, phase=phase, pid=7, installation=installation)
        run = FakeRun(Preparation(run=spec), status, starts=int(phase == protocol.RUNNING))
        world.nodes["node-1"].runs[STRAY] = run
        return run

    def test_a_run_of_ours_without_a_row_is_ended_and_removed(
        self, world: World, stray: FakeRun
    ) -> None:
        world.start()

        wait_for(lambda: not world.nodes["node-1"].runs)

        assert world.asked("stop") == [STRAY]

    def test_a_prepared_run_of_ours_without_a_row_is_cancelled(self, world: World) -> None:
        self.put(world, "here", protocol.PREPARED)

        world.start()

        wait_for(lambda: not world.nodes["node-1"].runs)

    def test_a_run_of_another_installation_is_left_alone(self, world: World) -> None:
        self.put(world, "elsewhere")
        world.start()
        wait_for(lambda: world.asked("runs").count("") >= 6)

        job = world.submit("true")
        world.wait_for_state(job, JobState.SUCCEEDED)

        assert STRAY in world.nodes["node-1"].runs
        assert world.asked("stop") == world.asked("cancel") == []

    def test_a_run_that_vanished_is_lost_and_its_job_tried_again(self, world: World) -> None:
        world.start()
        job, (member,) = running(world)

        del world.node_of(member).runs[world.run_id(member)]

        world.wait_for_state(job, JobState.QUEUED)
        (attempt,) = world.attempts(job)
        assert attempt.failure_class == "node"


def test_running_members_leases_are_renewed(world: World) -> None:
    world.start()
    _, (member,) = running(world)

    wait_for(lambda: Member.objects.get(pk=member.pk).lease_renewed_at is not None)

    assert world.run_of(member).lease is not None


def carried_by(owner: str) -> list[int]:
    return list(NodeLease.objects.filter(owner=owner).values_list("node_id", flat=True))


@pytest.mark.parametrize("hours", [2, -2])
def test_a_host_whose_clock_jumps_gives_its_nodes_up_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture, hours: int
) -> None:
    skew = timedelta(0)
    world.settings = replace(world.settings, node_lease=10.0)
    world.start("jumping", skew=lambda: skew)
    wait_for(lambda: len(carried_by("jumping")) == 3)

    skew = timedelta(hours=hours)
    wait_for(lambda: not carried_by("jumping"))
    world.start("other")
    # Long before the leases of the first would have run out.
    wait_for(lambda: len(carried_by("other")) == 3, seconds=5)

    row = Heartbeat.objects.get(process="jumping")
    assert (row.refusal, row.skew_seconds) == ("clock-skew", hours * 3600.0)
    assert f"differs from the database clock by {hours * 3600.0:+.1f} s" in caplog.text
    skew = timedelta(0)
    wait_for(lambda: len(carried_by("jumping")) == 1 and len(carried_by("other")) == 2)
    assert Heartbeat.objects.get(process="jumping").refusal == ""
