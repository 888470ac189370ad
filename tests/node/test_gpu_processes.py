"""Processes on GPUs that belong to no run are conditions of their GPUs."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from machines import CLOUD_T4, write_smi
from session import Session, make_spec, wait_until

from tessera import hardware, protocol
from tessera.hardware import Condition
from tessera.node import gpu_processes, probe, system
from tessera.node.gpus import GpuProcess
from tessera.node.runs import Store

GIB = 1 << 30


@pytest.fixture(autouse=True)
def initial_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own PID namespace is taken for that of the driver."""
    own = Path("/proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr(gpu_processes, "INITIAL_PID_NAMESPACE", own)


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a process that no run started."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as found:
        yield found.pid
        found.kill()


def foreign(home: Path, *found: GpuProcess, seconds: float = 0.0) -> list[Condition]:
    root = str(home / protocol.ROOT_DIR)
    return gpu_processes.foreign(root, found, least_seconds=seconds)


def process_of_run(session: Session, command: str) -> int:
    """Start a run, and return the pid that its command writes."""
    target = session.home / "pid"
    session.start(make_spec(command.format(target=target), devices=[0]))
    return int(wait_until(lambda: target.exists() and target.read_text(), "the pid of the run"))


def test_a_process_of_no_run_is_named_with_its_memory(home: Path, stranger: int) -> None:
    found = foreign(home, GpuProcess("GPU-0", stranger, 3 * GIB), GpuProcess("GPU-1", stranger))

    assert found == [
        Condition("foreign-process", f"pid {stranger} sleep 3 GiB", "GPU-0"),
        Condition("foreign-process", f"pid {stranger} sleep", "GPU-1"),
    ]


def test_the_text_is_equal_while_memory_changes_a_little(home: Path, stranger: int) -> None:
    texts = {
        foreign(home, GpuProcess("GPU-0", stranger, used))[0].detail
        for used in (3 * GIB, 3 * GIB + 7, 3 * GIB + GIB // 4)
    }

    assert len(texts) == 1


@pytest.mark.parametrize(
    "command",
    [
        "echo $$ > {target}; exec sleep 600",
        "sh -c 'sleep 600 & echo $! > {target}; wait'",
        "setsid sh -c 'echo $$ > {target}; exec sleep 600' & sleep 600",
        "(setsid sh -c 'echo $$ > {target}; exec sleep 600' &) ; sleep 600",
    ],
    ids=["main process", "child", "own session", "own session, without its parent"],
)
def test_a_process_of_a_run_is_not_foreign(plain: Session, stranger: int, command: str) -> None:
    plain.ask("hello", protocol=1)
    pid = process_of_run(plain, command)

    found = foreign(plain.home, GpuProcess("GPU-0", pid), GpuProcess("GPU-1", stranger))

    assert [one.uuid for one in found] == ["GPU-1"]


def test_a_process_of_an_ended_run_is_foreign(home: Path, stranger: int) -> None:
    run = Store(str(home / protocol.ROOT_DIR)).run(make_spec().run_id)
    Path(run.path).mkdir(parents=True)
    start = system.start_ticks(stranger)
    status = protocol.RunStatus(
        run_id=run.run_id, phase=protocol.RUNNING, pid=stranger, pid_start=start
    )

    def found_with(recorded: protocol.RunStatus) -> list[Condition]:
        run.record(recorded)
        return foreign(home, GpuProcess("GPU-0", stranger))

    assert found_with(status) == []
    assert len(found_with(replace(status, pid_start=(start or 0) - 1))) == 1, "a reused pid"
    assert len(found_with(replace(status, phase=protocol.EXITED))) == 1


def test_a_young_or_ended_process_does_not_count(home: Path, stranger: int) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert foreign(home, GpuProcess("GPU-0", stranger), seconds=3600.0) == []
    assert foreign(home, GpuProcess("GPU-0", ended.pid)) == []


def test_a_zombie_is_named_as_one(home: Path) -> None:
    with subprocess.Popen(["true"], start_new_session=True) as child:

        def is_zombie() -> bool:
            entry = system.entry(child.pid)
            return entry is not None and entry.state == "Z"

        wait_until(is_zombie, "the end of the child")
        found = foreign(home, GpuProcess("GPU-0", child.pid))

    assert [one.detail for one in found] == [f"pid {child.pid} true zombie"]


def test_many_processes_of_one_gpu_are_counted(home: Path) -> None:
    children = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(7)]
    try:
        found = foreign(home, *(GpuProcess("GPU-0", child.pid, GIB) for child in children))
    finally:
        for child in children:
            child.kill()
            child.wait()

    assert len(found) == 1
    assert found[0].detail.count("pid ") == 5
    assert found[0].detail.endswith("; 2 more")


def test_a_node_in_a_namespace_of_its_own_reports_nothing(
    home: Path, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_processes, "INITIAL_PID_NAMESPACE", 1)

    assert foreign(home, GpuProcess("GPU-0", stranger)) == []


def test_the_probe_reports_foreign_processes(
    home: Path, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    write_smi(CLOUD_T4.change(2, processes=((stranger, 5120),)), home / "nvidia-smi")
    clock = time.clock_gettime(time.CLOCK_BOOTTIME) + gpu_processes.LEAST_SECONDS + 1
    monkeypatch.setattr(system, "boot_clock", lambda: clock)

    conditions = probe.inventory(str(home)).conditions

    uuid = CLOUD_T4.boards[2].uuid
    assert conditions == [Condition(hardware.FOREIGN_PROCESS, f"pid {stranger} sleep 5 GiB", uuid)]


def test_a_run_without_a_readable_record_leaves_the_owners_unknown(
    home: Path, stranger: int
) -> None:
    run = Store(str(home / protocol.ROOT_DIR)).run(make_spec().run_id)
    Path(run.path).mkdir(parents=True)
    run.record(protocol.RunStatus(run_id=run.run_id, phase=protocol.UNKNOWN))

    assert foreign(home, GpuProcess("GPU-0", stranger)) == []


def test_a_daemon_of_mps_of_the_node_itself_is_not_foreign(home: Path) -> None:
    daemon = home / "nvidia-cuda-mps-server"
    shutil.copy("/bin/sleep", daemon)
    with subprocess.Popen([str(daemon), "600"], start_new_session=True) as child:
        try:
            assert foreign(home, GpuProcess("GPU-0", child.pid)) == []
        finally:
            child.kill()


def test_a_running_job_without_a_control_group_leaves_the_owners_unknown(
    home: Path, stranger: int
) -> None:
    run = Store(str(home / protocol.ROOT_DIR)).run(make_spec().run_id)
    Path(run.path).mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as main:
        run.record(
            protocol.RunStatus(
                run_id=run.run_id,
                phase=protocol.RUNNING,
                pid=main.pid,
                pid_start=system.start_ticks(main.pid),
            )
        )
        while_it_runs = foreign(home, GpuProcess("GPU-0", stranger))
        main.kill()
    after = foreign(home, GpuProcess("GPU-0", stranger))

    assert while_it_runs == []
    assert len(after) == 1
