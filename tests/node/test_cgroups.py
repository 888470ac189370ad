"""Limits as they are written into control groups, on a tree of plain files."""

import os
from pathlib import Path

import pytest

from tessera.node import cgroups, kernel

RUN = "0123456789abcdef.worker.0"
MEMORY = 64 << 20
UNIFIED_MOUNT = (
    cgroups.MOUNT
    if Path(cgroups.MOUNT, "cgroup.controllers").exists()
    else f"{cgroups.MOUNT}/unified"
)
UNIFIED = ("memory.max", "memory.swap.max", "memory.oom.group", "memory.events", "cpu.max")


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place instead of the machine's own groups."""
    # The machine's own groups must not be written.
    monkeypatch.setattr(cgroups, "MOUNT", str(tmp_path))
    return tmp_path


def unified(mount: Path, *, files: tuple[str, ...] = UNIFIED) -> Path:
    """A tree of version 2, in which the kernel has made the group's files already."""
    group = mount / "tessera" / f"tessera-{RUN}"
    group.mkdir(parents=True)
    for path in (mount, group.parent):
        (path / "cgroup.subtree_control").touch()
    (mount / "cgroup.controllers").touch()
    for name in ("cgroup.procs", *files):
        (group / name).touch()
    return group


def controllers(mount: Path, **files: str) -> dict[str, Path]:
    """A tree of version 1, below the groups that this process is in."""
    found = {}
    for name, file in files.items():
        own = mount / name / cgroups._own_paths().get(name, "/").lstrip("/")
        found[name] = own / f"tessera-{RUN}"
        found[name].mkdir(parents=True)
        for path in (own / "cgroup.procs", found[name] / "cgroup.procs", found[name] / file):
            path.touch()
    return found


def test_version_two_gets_both_limits_and_no_swap(mount: Path) -> None:
    path = unified(mount)

    group = cgroups.create(RUN, cpus=1.5, memory_bytes=MEMORY)

    assert cgroups.version() == "v2"
    assert group is not None
    assert group.complete
    assert {name: (path / name).read_text() for name in UNIFIED} == {
        "memory.max": str(MEMORY),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "memory.events": "",
        "cpu.max": "150000 100000",
    }
    assert (mount / "tessera" / "cgroup.subtree_control").read_text().startswith("+cpu")


def test_what_is_not_asked_for_is_not_limited(mount: Path) -> None:
    path = unified(mount)

    group = cgroups.create(RUN, cpus=0, memory_bytes=MEMORY)

    assert group is not None
    assert group.complete
    assert (path / "cpu.max").read_text() == ""


def test_a_share_of_a_processor_below_what_the_kernel_takes_is_rounded_up(mount: Path) -> None:
    path = unified(mount)

    cgroups.create(RUN, cpus=0.001, memory_bytes=0)

    assert (path / "cpu.max").read_text() == "1000 100000"


def test_a_machine_that_grants_memory_alone_limits_memory_and_says_so(mount: Path) -> None:
    path = unified(mount, files=("memory.max",))

    group = cgroups.create(RUN, cpus=2, memory_bytes=MEMORY)

    assert group is not None
    assert not group.complete
    assert (path / "memory.max").read_text() == str(MEMORY)


def test_a_group_that_grants_no_controller_below_it_is_passed_over(mount: Path) -> None:
    unified(mount)
    (mount / "tessera" / "cgroup.subtree_control").unlink()

    assert cgroups.create(RUN, cpus=2, memory_bytes=MEMORY) is None
    assert cgroups.version() == ""


def test_version_one_gets_both_limits_each_in_its_own_tree(mount: Path) -> None:
    paths = controllers(mount, memory="memory.limit_in_bytes", cpu="cpu.cfs_quota_us")

    group = cgroups.create(RUN, cpus=0.5, memory_bytes=MEMORY)

    assert cgroups.version() == "v1"
    assert group is not None
    assert group.complete
    assert (paths["memory"] / "memory.limit_in_bytes").read_text() == str(MEMORY)
    assert (paths["cpu"] / "cpu.cfs_quota_us").read_text() == "50000"


def test_a_process_that_may_not_enter_is_distinguished_from_one_that_has(mount: Path) -> None:
    path = unified(mount)
    group = cgroups.create(RUN, cpus=1, memory_bytes=MEMORY)
    assert group is not None

    entered = group.hold(4711)
    written = (path / "cgroup.procs").read_text()
    (path / "cgroup.procs").unlink()

    assert entered
    assert written == "4711"
    assert not group.hold(4711)


def test_a_child_of_version_one_moves_itself_as_one_thread(mount: Path) -> None:
    paths = controllers(mount, cpu="cpu.cfs_quota_us", pids="pids.max")
    for path in paths.values():
        (path / "tasks").touch()
    group = cgroups.create(RUN, cpus=1, memory_bytes=0, processes=64)

    assert held_child(group)

    assert [(path / "tasks").read_text() for path in paths.values()] == ["0", "0"]
    assert [(path / "cgroup.procs").read_text() for path in paths.values()] == ["", ""]


def test_a_child_that_may_not_enter_one_group_knows_it(mount: Path) -> None:
    paths = controllers(mount, cpu="cpu.cfs_quota_us", pids="pids.max")
    (paths["cpu"] / "tasks").touch()
    group = cgroups.create(RUN, cpus=1, memory_bytes=0, processes=64)

    assert not held_child(group)
    assert not held_child(None)


def test_a_child_moves_itself_where_the_kernel_does_not_make_it_in_the_group(mount: Path) -> None:
    path = unified(mount)  # plain files, which no process can be made in
    group = cgroups.create(RUN, cpus=1, memory_bytes=0)

    assert held_child(group)

    assert (path / "cgroup.procs").read_text() == "0"


def test_a_child_is_made_in_a_real_group_of_version_two() -> None:
    path = Path(UNIFIED_MOUNT, f"tessera-test-{os.getpid()}")
    try:
        path.mkdir()
    except OSError:
        pytest.skip("this user may not make groups of version 2")
    group = cgroups.Group([str(path)], unified=True, complete=True)
    reader, writer = os.pipe()
    try:
        pid, is_held = cgroups.fork(group, kernel.CLONE_NEWPID if os.getuid() == 0 else 0)
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(int(is_held))
        inside = (path / "cgroup.procs").read_text().split()
        os.close(writer)
        os.close(reader)
        _, status = os.waitpid(pid, 0)
    finally:
        group.remove()

    assert inside == [str(pid)]
    assert os.WEXITSTATUS(status) == 1
    assert not path.exists()


def held_child(group: cgroups.Group | None) -> bool:
    """Fork a child into groups; whether it reports that it is in all of them."""
    pid, is_held = cgroups.fork(group)
    if pid == 0:
        os._exit(int(is_held))
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) == 1


def test_kills_for_memory_are_read_from_the_group(mount: Path) -> None:
    path = unified(mount)
    group = cgroups.create(RUN, cpus=1, memory_bytes=MEMORY)
    (path / "memory.events").write_text("low 0\nmax 7\noom 2\noom_kill 2\n")

    assert group is not None
    assert group.oom_kills() == 2


def test_version_two_bounds_processes_also_where_nothing_else_is_limited(mount: Path) -> None:
    path = unified(mount, files=(*UNIFIED, "pids.max"))

    group = cgroups.create(RUN, cpus=0, memory_bytes=0, processes=64)

    assert group is not None
    assert group.bounds_processes
    assert group.complete
    assert (path / "pids.max").read_text() == "64"
    assert (path / "memory.swap.max").read_text() == ""


def test_version_one_bounds_processes_in_their_own_tree(mount: Path) -> None:
    paths = controllers(mount, memory="memory.limit_in_bytes", cpu="cpu.cfs_quota_us")
    paths |= controllers(mount, pids="pids.max")

    group = cgroups.create(RUN, cpus=0, memory_bytes=MEMORY, processes=64)

    assert group is not None
    assert group.bounds_processes
    assert group.complete
    assert (paths["pids"] / "pids.max").read_text() == "64"
    assert (paths["memory"] / "memory.limit_in_bytes").read_text() == str(MEMORY)
    assert group.hold(4711)
    assert (paths["pids"] / "cgroup.procs").read_text() == "4711"


@pytest.mark.parametrize("version", [1, 2])
def test_processes_are_not_bounded_where_the_machine_does_not_grant_it(
    mount: Path, version: int
) -> None:
    if version == 2:
        unified(mount)
    else:
        controllers(mount, memory="memory.limit_in_bytes", cpu="cpu.cfs_quota_us")

    group = cgroups.create(RUN, cpus=1, memory_bytes=MEMORY, processes=64)

    assert group is not None
    assert group.complete
    assert not group.bounds_processes


def test_a_guest_of_version_one_has_a_freezer_and_the_least_share(mount: Path) -> None:
    paths = controllers(mount, freezer="freezer.state", cpu="cpu.shares")

    group = cgroups.create(RUN, cpus=0, memory_bytes=0, is_guest=True)

    assert group is not None
    assert group.freeze(frozen=True)
    assert (paths["freezer"] / "freezer.state").read_text() == "FROZEN"
    cgroups.thaw(RUN)
    assert (paths["freezer"] / "freezer.state").read_text() == "THAWED"
    assert group.demote(is_guest=True)
    assert (paths["cpu"] / "cpu.shares").read_text() == "2"


def test_a_guest_of_version_two_is_frozen_and_idle(mount: Path) -> None:
    path = unified(mount, files=(*UNIFIED, "cgroup.freeze", "cpu.idle"))

    group = cgroups.create(RUN, cpus=0, memory_bytes=0, is_guest=True)

    assert group is not None
    assert group.freeze(frozen=True)
    assert group.demote(is_guest=True)
    assert (path / "cgroup.freeze").read_text() == "1"
    assert (path / "cpu.idle").read_text() == "1"


def test_a_group_without_a_freezer_freezes_nothing(mount: Path) -> None:
    controllers(mount, pids="pids.max")

    group = cgroups.create(RUN, cpus=0, memory_bytes=0, processes=9)

    assert group is not None
    assert not group.freeze(frozen=True)
