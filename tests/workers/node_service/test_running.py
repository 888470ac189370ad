"""Jobs on nodes in memory, from the rows to the rows."""

from scheduling.core.lifecycle import JobState
from scheduling.enums import MemberStep
from scheduling.models import Lease
from tests.workers.node_service.conftest import World, wait_for
from workers.models import LogStream
from workers.services import log_files


def test_a_job_runs_succeeds_and_leaves_its_log(world: World) -> None:
    world.start()

    job = world.submit("echo hello")
    world.wait_for_state(job, JobState.SUCCEEDED)

    (member,) = world.members(job)
    wait_for(lambda: LogStream.objects.filter(member=member, closed=True).exists())
    stream = LogStream.objects.get(member=member)
    assert log_files.read(world.settings.logs_dir / stream.path, offset=0, limit=99) == (
        0,
        b"hello\n",
    )
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
    environment = [world.node_of(m).runs[world.run_id(m)].preparation.run.env for m in members]
    assert [e["RANK"] for e in environment] == ["0", "1"]
    assert {e["WORLD_SIZE"] for e in environment} == {"2"}
    assert {e["MASTER_ADDR"] for e in environment} == {members[0].node.host}
    assert {e["MASTER_PORT"] for e in environment} == {str(members[0].attempt.port)}
