"""A session reuses its runners; no run depends on another one, and no runner on the session."""

import errno
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session import (
    Session,
    declare_isolation,
    exited_status,
    log_writer_pid,
    make_spec,
    wait_for_process_end,
    wait_until,
)

from tessera.node import prepare, runs, system
from tessera.node.helper import receive_descriptors, send_descriptors
from tessera.node.pool import IDLE_SECONDS, MOST_IDLE, Pool, fork_pair
from tessera.node.serve import Server
from tessera.protocol import RunStatus

# Three streams and the channel; the runner also has the orders and the pipe of its signals.
WRITERS_DESCRIPTORS, RUNNERS_DESCRIPTORS = 4, 7


def run_on(session: Session, runner: int, command: str) -> tuple[RunStatus, str]:
    """Run a command on an idle runner; others, forked before it was idle, are killed."""

    def attempt() -> tuple[RunStatus, str] | None:
        wait_until(lambda: descriptors(runner) == RUNNERS_DESCRIPTORS, "the end of its last run")
        status, log = session.run(command)
        if status.runner_pid == runner:
            return status, log
        system.kill_quietly(status.runner_pid or 0, signal.SIGKILL)
        return None

    found = wait_until(attempt, f"a run of runner {runner}")
    assert isinstance(found, tuple)
    return found


def first_runner(session: Session) -> int:
    status, _ = session.run("true")
    assert status.runner_pid
    return status.runner_pid


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_the_next_run_has_the_same_runner_and_its_own_log_and_end(session: Session) -> None:
    runner = first_runner(session)

    for number in range(3):
        command = f"echo line {number}; echo '{{}}' >> $TESSERA_JOB_REPORTS; exit {number}"
        status, log = run_on(session, runner, command)
        assert log == f"line {number}\n"
        assert status.exit is not None
        assert (status.exit.code, status.exit.cause) == (number, "exited")
        assert status.reports_end == len("{}\n")


def test_a_reused_pair_holds_no_descriptor_of_earlier_runs(session: Session) -> None:
    spec = make_spec("true")
    runner = session.start(spec).runner_pid or 0
    writer = log_writer_pid(session, spec)
    session.exit_of(spec)
    for _ in range(5):
        run_on(session, runner, "echo x")

    wait_until(lambda: descriptors(writer) == WRITERS_DESCRIPTORS, "no other of the writer")
    wait_until(lambda: descriptors(runner) == RUNNERS_DESCRIPTORS, "no other of the runner")


@pytest.mark.parametrize("victim", ["runner", "writer"])
def test_a_pair_that_is_killed_between_two_runs_harms_none(session: Session, victim: str) -> None:
    spec = make_spec("true")
    runner = session.start(spec).runner_pid or 0
    writer = log_writer_pid(session, spec)
    session.exit_of(spec)
    run_on(session, runner, "true")

    killed = runner if victim == "runner" else writer
    os.kill(killed, signal.SIGKILL)
    wait_for_process_end(killed)  # until then the pair can take an order, and lose it
    statuses = [session.run("echo whole") for _ in range(3)]

    for status, log in statuses:
        assert log == "whole\n"
        assert status.exit is not None
        assert status.exit.code == 0
    wait_for_process_end(runner)
    wait_for_process_end(writer)


def test_a_runner_whose_writer_was_replaced_gets_no_other_run(session: Session) -> None:
    spec = make_spec("until [ -e go ]; do sleep 0.01; done; echo end")
    runner = session.start(spec).runner_pid or 0
    writer = log_writer_pid(session, spec)
    os.kill(writer, signal.SIGKILL)
    wait_until(lambda: log_writer_pid(session, spec) != writer, "another writer")
    (session.directory(spec) / "work" / "go").touch()

    session.exit_of(spec)

    assert session.log(spec).endswith("end\n")
    wait_for_process_end(runner)


def test_the_end_of_the_session_ends_idle_pairs_and_no_run(home: Path) -> None:
    declare_isolation(home, strongest="none")
    session = Session(home)
    long = make_spec("until [ -e go ]; do sleep 0.01; done; exit 4")
    busy = session.start(long).runner_pid or 0
    idle = first_runner(session)
    run_on(session, idle, "true")

    session.kill()

    wait_for_process_end(idle)
    assert system.process(busy) is not None
    (session.directory(long) / "work" / "go").touch()
    session = Session(home)
    status = wait_until(lambda: exited_status(session, long), "the end")
    assert status.exit.code == 4
    wait_for_process_end(busy)
    session.close()


def test_a_pair_that_ends_after_its_last_run_does_not_report_that_it_is_idle(home: Path) -> None:
    declare_isolation(home, strongest="none")
    store = runs.Store(str(home / ".tessera"))
    store.create()
    _, orders = fork_pair(store, "", lambda: None, most_runs=2)
    said = []

    for letter in "ab":
        spec = make_spec("true", attempt=letter * 32)
        prepare.prepare(store, spec, {}, "0" * 64)
        lock = store.run(spec.run_id).claim()
        ready, running = os.pipe()
        send_descriptors(orders, spec.run_id.encode(), [lock, running])
        for descriptor in (lock, ready, running):
            os.close(descriptor)
        said.append(orders.recv(8))

    assert said == [b"idle", b""]
    assert {store.run(name).recorded().phase for name in store.names()} == {"exited"}
    orders.close()


# -- the pool, without processes -----------------------------------------------------------------


class Loop:
    """A session with a clock that is set, whose pairs are sockets."""

    def __init__(self, tmp_path: Path) -> None:
        self.time = 0.0
        self.handlers: dict[int, Callable[[], None]] = {}
        self.changes: list[str] = []
        self.runners: list[socket.socket] = []
        self.store = runs.Store(str(tmp_path))
        self.probes = ["namespace"]
        self.pool = Pool(self, self.fork, lambda: tuple(self.probes))

    def now(self) -> float:
        return self.time

    def wait_for(self, descriptor: int, handler: Callable[[], None]) -> None:
        self.handlers[descriptor] = handler

    def forget(self, descriptor: int) -> None:
        del self.handlers[descriptor]
        os.close(descriptor)

    def changed(self, run_id: str) -> None:
        self.changes.append(run_id)

    def fork(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        self.runners.append(theirs)
        return len(self.runners), ours

    def start(self, attempt: str) -> str:
        spec = make_spec(attempt=attempt)
        lock = os.open(os.devnull, os.O_RDONLY)
        os.close(self.pool.start(self.store.run(spec.run_id), lock))
        os.close(lock)
        return spec.run_id

    def order(self, runner: int) -> str:
        """The run that this runner was given last, with its two descriptors."""
        content, found = receive_descriptors(self.runners[runner], 256)
        assert len(found) == 2
        for one in found:
            os.close(one)
        return content.decode()

    def turn(self) -> None:
        for handler in list(self.handlers.values()):
            handler()

    def become_idle(self) -> None:
        for runner in self.runners:
            runner.send(b"idle")
        self.turn()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    found = Loop(tmp_path)
    yield found
    for runner in found.runners:
        runner.close()
    found.turn()


def test_a_busy_runner_gets_no_order_and_an_idle_one_the_next(loop: Loop) -> None:
    runs_of = [loop.start("a" * 32), loop.start("b" * 32)]
    assert [loop.order(0), loop.order(1)] == runs_of

    loop.runners[0].send(b"idle")
    loop.handlers[min(loop.handlers)]()
    third = loop.start("c" * 32)

    assert loop.order(0) == third
    assert len(loop.runners) == 2


def test_a_session_that_cannot_fork_keeps_no_descriptor(tmp_path: Path) -> None:
    class Full(Loop):
        def fork(self) -> tuple[int, socket.socket]:
            raise BlockingIOError(errno.EAGAIN, "no more processes")

    loop = Full(tmp_path)
    before = descriptors(os.getpid())
    lock = os.open(os.devnull, os.O_RDONLY)

    with pytest.raises(BlockingIOError):
        loop.pool.start(loop.store.run(make_spec().run_id), lock)

    os.close(lock)
    assert descriptors(os.getpid()) == before


def test_a_session_without_free_descriptors_gives_the_lock_of_the_run_back(tmp_path: Path) -> None:
    server = Server(runs.Store(str(tmp_path)), "bundle")
    lock = os.open(os.devnull, os.O_RDONLY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            server.start(server.store.run(make_spec().run_id), lock, lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(lock)


def test_a_session_keeps_few_idle_pairs_for_a_short_time(loop: Loop) -> None:
    for number in range(MOST_IDLE + 2):
        loop.start(f"{number:032x}")
        loop.order(number)
    loop.become_idle()
    assert len(loop.handlers) == MOST_IDLE

    loop.time = IDLE_SECONDS - 0.1
    loop.pool.retire()
    assert len(loop.handlers) == MOST_IDLE
    assert loop.pool.retire_at() == IDLE_SECONDS
    loop.time = IDLE_SECONDS
    loop.pool.retire()

    assert not loop.handlers
    assert loop.pool.retire_at() is None
    assert all(runner.recv(8) == b"" for runner in loop.runners)


def test_a_pair_that_has_inherited_other_probes_gets_no_run(loop: Loop) -> None:
    loop.start("a" * 32)
    loop.order(0)
    loop.become_idle()

    loop.probes = ["none"]
    second = loop.start("b" * 32)

    assert loop.order(1) == second
    assert loop.runners[0].recv(256) == b""


def test_a_killed_pair_is_left_out_and_its_run_is_checked(loop: Loop) -> None:
    first = loop.start("a" * 32)
    loop.order(0)
    loop.runners[0].close()
    loop.turn()
    assert loop.changes == [first]
    loop.pool.ended(1)

    second = loop.start("b" * 32)
    loop.runners[1].send(b"idle")
    loop.turn()
    loop.order(1)
    loop.pool.ended(2)  # its log writer
    third = loop.start("c" * 32)

    assert loop.changes == [first, first, second]
    assert loop.order(2) == third
    assert loop.runners[1].recv(256) == b""
