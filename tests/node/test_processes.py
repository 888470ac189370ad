"""A job that forks without end is limited, and its node can still end it."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from session import (
    ALICE,
    BOB,
    ORDINARY,
    PLACES,
    ROOT,
    Session,
    declare_isolation,
    make_spec,
    node,
    wait_until,
)

from tessera import protocol
from tessera.isolation import MOST_PROCESSES, NONE, USER
from tessera.node import cgroups, confinement, system
from tessera.protocol import ProtocolError

MOST = 64
BOMB = """
import os, sys, time
print("up", flush=True)
while True:
    try:
        os.fork()
    except OSError:
        print("refused", flush=True)
        time.sleep(0.05)
"""


@pytest.fixture(params=[*PLACES, (NONE, ROOT)], ids="-".join)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Session]]:
    """A node that allows 64 processes to a job."""
    level, account = request.param
    if account == ORDINARY or cgroups._parents_v1(("pids",)) or cgroups._parent_v2():
        with node(level, account) as session:
            declare_isolation(session.home, strongest=level, processes=MOST)
            yield level, session
    else:
        pytest.skip("root is not bounded without control groups")


def test_a_fork_bomb_is_bounded_and_ends_when_it_is_stopped(place: tuple[str, Session]) -> None:
    level, session = place
    uids = {ALICE: ALICE, BOB: BOB} if level == USER else {}
    spec = make_spec("exec python3 bomb.py", isolation=level, uid=uids.get(ALICE))
    session.prepare(spec)
    (session.directory(spec) / "work" / "bomb.py").write_text(BOMB)
    session.go(spec)
    wait_until(lambda: "refused" in session.log(spec), "the bound")

    begun = time.monotonic()
    session.ask("hello", protocol=protocol.PROTOCOL_VERSION)
    other = make_spec("echo answers", isolation=level, uid=uids.get(BOB))
    session.start(other)
    assert session.exit_of(other).exit
    answered = time.monotonic() - begun
    alive = len([one for one in system.processes() if is_of(one.pid, spec.run_id)])
    session.ask("stop", run_id=spec.run_id, grace_seconds=0.2, reason="user")
    status = session.exit_of(spec, 30)

    assert 1 <= alive <= MOST
    assert answered < 20
    assert status.exit is not None
    assert status.exit.cause == "stopped"
    wait_until(
        lambda: not [one for one in system.processes() if is_of(one.pid, spec.run_id)],
        "the end of all its processes",
    )


def test_a_killed_runner_leaves_no_group_and_no_process(place: tuple[str, Session]) -> None:
    level, session = place
    spec = make_spec("sleep 600", isolation=level, uid=ALICE if level == USER else None)
    status = session.start(spec)
    assert status.runner_pid
    before = cgroups._existing(spec.run_id)

    os.kill(status.runner_pid, signal.SIGKILL)
    wait_until(lambda: session.status(spec).phase == protocol.EXITED, "the end of the run")

    assert before or level != NONE
    assert cgroups._existing(spec.run_id) == []
    assert not [one for one in system.processes() if is_of(one.pid, spec.run_id)]


def test_a_run_that_is_only_prepared_has_no_group_and_no_process(
    place: tuple[str, Session],
) -> None:
    level, session = place
    spec = make_spec("true", isolation=level, uid=ALICE if level == USER else None)

    session.prepare(spec)

    assert cgroups._existing(spec.run_id) == []
    assert not [one for one in system.processes() if is_of(one.pid, spec.run_id)]
    if level != USER:  # its helper
        wait_until(
            lambda: not system.descendants({session.process.pid}), "the end of background work"
        )


def is_of(pid: int, run_id: str) -> bool:
    return f"TESSERA_JOB_RUN_ID={run_id}".encode() in system.environment_of(pid)


def test_without_a_declaration_a_job_leaves_half_of_the_process_ids(
    tmp_path: Path,
) -> None:
    for pid_max, expected in ((32_768, 16_384), (4_194_304, MOST_PROCESSES), (1000, 500)):
        assert confinement.usual_processes(pid_max) == expected

    of_this_machine = confinement.usual_processes(
        int(Path("/proc/sys/kernel/pid_max").read_text())
    )
    assert confinement.declaration(str(tmp_path)).processes == of_this_machine


@pytest.mark.parametrize("processes", [0, 15, 1 << 30, "many", True])
def test_a_process_limit_out_of_range_is_refused(home: object, processes: object) -> None:
    declare_isolation(home, processes=processes)  # type: ignore[arg-type]

    with pytest.raises(ProtocolError, match="processes"):
        confinement.declaration(f"{home}/{protocol.ROOT_DIR}")
