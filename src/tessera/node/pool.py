"""Runners of a session: an idle pair of log writer and runner gets the next run.

A session and each of its runners share a socket. When it is closed, an idle pair ends at once, and
a busy pair after its run. So pairs execute the same version of the code as their session.
"""

from __future__ import annotations

import os
import socket
from typing import Callable, Dict, List, Optional, Protocol, Tuple

from tessera.node import helped, kernel, log_process, runs, system
from tessera.node.helper import receive_descriptors, send_descriptors
from tessera.node.log_process import Partner
from tessera.node.runner import Runner, Wakes
from tessera.node.runs import Run, Store

MOST_IDLE = 8
IDLE_SECONDS = 20.0
MOST_RUNS = 1000
_IDLE = b"idle"
_LONGEST_ID = 256


class PoolSession(Protocol):
    """Interface of the session to its pool."""

    def now(self) -> float:
        """Return the time in seconds."""

    def wait_for(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever the descriptor is readable."""

    def forget(self, descriptor: int) -> None:
        """Unregister the descriptor, and close it."""

    def changed(self, run_id: str) -> None:
        """Check a run soon: its runner or its log writer has ended."""


class _Pair:
    """A log writer and its child, the runner.

    Attributes:
        writer: pid of the log writer.
        orders: the socket to the runner.
        probes: outcomes of probes that it has inherited.
        run_id: the current or last run.
    """

    def __init__(self, writer: int, orders: socket.socket, probes: object) -> None:
        self.writer, self.orders, self.probes = writer, orders, probes
        self.run_id = ""
        self.idle_since = 0.0

    def take(self, run: Run, descriptors: List[int]) -> bool:
        """Order a run; False if the runner has been killed."""
        self.run_id = run.run_id
        try:
            send_descriptors(self.orders, run.run_id.encode("ascii"), descriptors)
        except OSError:
            return False
        return True


class Pool:
    """The pairs of a session.

    Args:
        loop: the session.
        fork: forks a pair; returns the pid of its log writer, and the socket to its runner.
        probes: returns the session's outcomes of probes, which a pair inherits; one with others
            gets no further run.
    """

    def __init__(
        self,
        loop: PoolSession,
        fork: Callable[[], Tuple[int, socket.socket]],
        probes: Callable[[], object],
    ) -> None:
        self._loop, self._fork, self._probes = loop, fork, probes
        self._pairs: Dict[int, _Pair] = {}
        self._idle: List[_Pair] = []

    def start(self, run: Run, lock: int) -> int:
        """Give a claimed run to a runner.

        Args:
            run: the run.
            lock: the descriptor of its ``go`` file; the caller closes its copy.

        Returns:
            A descriptor that reaches its end once the job runs or has failed.

        Raises:
            OSError: no process can be forked.
        """
        probes = self._probes()
        for pair in [one for one in self._idle if one.probes != probes]:
            self._dismiss(pair)
        ready, running = os.pipe()
        descriptors = [lock, running]
        try:
            if not any(self._idle.pop().take(run, descriptors) for _ in range(len(self._idle))):
                self._add(*self._fork(), probes).take(run, descriptors)
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(running)
        return ready

    def _add(self, writer: int, orders: socket.socket, probes: object) -> _Pair:
        pair = self._pairs[writer] = _Pair(writer, orders, probes)
        self._loop.wait_for(orders.fileno(), lambda: self._hear(pair))
        return pair

    def _hear(self, pair: _Pair) -> None:
        try:
            is_idle = pair.orders.recv(len(_IDLE)) == _IDLE
        except OSError:
            is_idle = False
        if is_idle and len(self._idle) < MOST_IDLE and pair.writer in self._pairs:
            pair.idle_since = self._loop.now()
            self._idle.append(pair)
            return
        self._dismiss(pair)
        if not is_idle:
            self._loop.changed(pair.run_id)

    def _dismiss(self, pair: _Pair) -> None:
        if pair in self._idle:
            self._idle.remove(pair)
        if pair.orders.fileno() >= 0:
            self._loop.forget(pair.orders.detach())

    def ended(self, pid: int) -> None:
        """Record the end of a child of the session, which may be a log writer."""
        pair = self._pairs.pop(pid, None)
        if pair is not None:
            if pair in self._idle:
                self._dismiss(pair)
            self._loop.changed(pair.run_id)

    def retire_at(self) -> Optional[float]:
        """Return the time at which the next idle pair has to end; None without one."""
        return self._idle[0].idle_since + IDLE_SECONDS if self._idle else None

    def retire(self) -> None:
        """End the pairs that have been idle for ``IDLE_SECONDS``."""
        now = self._loop.now()
        while self._idle and now >= self._idle[0].idle_since + IDLE_SECONDS:
            self._dismiss(self._idle[0])


def fork_pair(
    store: Store, bundle: str, detach: Callable[[], None], *, most_runs: int = MOST_RUNS
) -> Tuple[int, socket.socket]:
    """Fork a pair that waits for its first run.

    Args:
        store: the node's runs.
        bundle: path of the bundle for the PYTHONPATH of jobs.
        detach: called in the child, to detach it from the session.
        most_runs: number of runs after which it ends.

    Returns:
        The pid of the log writer, and the socket to the runner.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writer = os.fork()
    if writer:
        theirs.close()
        return writer, ours
    try:
        os.setsid()
        detach()
        _become_pair(store, bundle, theirs, most_runs)
    finally:
        os._exit(0)


# -- in the pair ---------------------------------------------------------------------------------


def _become_pair(store: Store, bundle: str, orders: socket.socket, most_runs: int) -> None:
    """Become the log writer, and fork the runner."""
    system.redirect_standard_streams()
    kernel.close_others({orders.fileno(), *helped.descriptors()})
    partner = log_process.fork_runner(store)
    system.name_process("tessera-runner")
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    _serve(store, bundle, orders, partner, most_runs)


def _serve(
    store: Store, bundle: str, orders: socket.socket, partner: Partner, most_runs: int
) -> None:
    """Run the ordered runs one by one, until the session ends or this pair is not reusable."""
    wakes = Wakes()
    is_reusable = not helped.descriptors()
    own = _descriptors()
    for number in range(1, most_runs + 1):
        run_id, descriptors = receive_descriptors(orders, _LONGEST_ID)
        if not run_id:
            return
        run = store.run(run_id.decode("ascii"))
        lock, running = descriptors
        try:
            runner = Runner(run, running, bundle, partner, wakes)
            runner.supervise()
        except BaseException:  # the error is only recorded: the session corrects the state
            runs.note_error(run)
            return
        os.close(lock)
        is_reusable = is_reusable and runner.is_reusable and not _has_children()
        # A pair that is about to end must not report that it is idle: it would lose an order.
        if number == most_runs or not is_reusable or _descriptors() != own:
            return
        wakes.ignore()
        orders.send(_IDLE)


def _descriptors() -> "frozenset[str]":
    return frozenset(os.listdir("/proc/self/fd"))


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
