"""A session with the control plane: requests, replies and events in one non-blocking thread.

The session ends when its input closes; its runners continue, and the next session
finds them in their directories.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Tuple, Union

from tessera import protocol
from tessera.node import (
    background,
    checkpoints,
    confinement,
    networks,
    secret_files,
    system,
    versions,
)
from tessera.node.background import Work
from tessera.node.operations import Operations
from tessera.node.pool import Pool, fork_pair
from tessera.node.runs import Run, Store
from tessera.node.watch import Watch
from tessera.protocol import Json, ProtocolError
from tessera.wire import Fields

TICK_SECONDS = 0.25
SWEEP_SECONDS = 1.0
LONGEST_UNSWEPT_SECONDS = 15.0
TRASH_SECONDS = 20.0
"""Limit of one child that empties the trash; another one continues."""
WHOLE_SWEEP_SECONDS = 3600.0
HIGH_WATER = 8 << 20  # maximum unread bytes; above it, requests wait
Handler = Callable[[], None]


class Server:
    """The event loop: descriptors and their handlers.

    Attributes:
        store: the node's runs.
        watch: the live ones.
        bundle: path of the code that runs, for the PYTHONPATH of jobs.
    """

    def __init__(self, store: Store, bundle: str, source: int = 0, target: int = 1) -> None:
        self.store = store
        self.bundle = bundle
        self._source, self._target = source, target
        self._poll = select.poll()
        self._readers: Dict[int, Handler] = {}
        self._received = b""
        self._overlong = False
        self._outgoing: Deque[Union[bytes, memoryview]] = deque()
        self._outgoing_bytes = 0
        self._stuck = False  # the target is full: wait until it is writable
        self._paused = False  # too many unread bytes: the source is not read
        self._changed: Dict[str, None] = {}
        self._open = True
        self._sweep_at: Optional[float] = None
        self._sweep_by = 0.0
        self._whole_sweep_at = 0.0
        self._is_sweeping = False
        self._pool = Pool(
            self,
            lambda: fork_pair(store, bundle, self.detach),
            lambda: (confinement.remembered(store.root), networks.remembered()),
        )
        self.watch = Watch(store, self._send)
        self._operations = Operations(self)

    # -- the loop --------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve until the input closes."""
        self.store.create()
        self._wake_on_signals()
        fifo = self._open_fifo()
        self.watch.scan(self.now())
        os.set_blocking(self._source, False)
        os.set_blocking(self._target, False)
        self.wait_for(self._source, self._read)
        gc.collect()
        gc.freeze()  # modules loaded now are shared with every runner
        next_tick = self.now()
        try:
            while self._open:
                self._wait(next_tick)
                self._look_at_what_changed()
                if self.now() >= next_tick:
                    next_tick = self.now() + TICK_SECONDS
                    self.watch.tick(self.now())
                self._say()
                self._pool.retire()
                if self._sweep_at is not None and self.now() >= self._sweep_at:
                    self._sweep()
        finally:
            system.remove_quietly(fifo)

    @staticmethod
    def now() -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def _wait(self, next_tick: float) -> None:
        due = [next_tick] if len(self.watch) else []
        due += [at for at in (self._sweep_at, self._pool.retire_at()) if at is not None]
        timeout = max(0.0, min(due) - self.now()) * 1000 if due else None
        for descriptor, events in self._poll.poll(timeout):
            if descriptor == self._source and not events & select.POLLIN:
                self._open = False  # the client has closed the connection, and all input was read
            elif descriptor == self._target:
                self._flush()
            elif descriptor in self._readers:
                self._readers[descriptor]()

    def wait_for(self, descriptor: int, handler: Handler) -> None:
        """Call ``handler`` whenever the descriptor is readable."""
        self._readers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def forget(self, descriptor: int) -> None:
        """Unregister the descriptor, and close it."""
        self._readers.pop(descriptor, None)
        self._poll.unregister(descriptor)
        os.close(descriptor)

    # -- event sources ---------------------------------------------------------------------------

    def _wake_on_signals(self) -> None:
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.wait_for(wake, lambda: self._reap(wake))

    def _reap(self, wake: int) -> None:
        _read_available(wake)
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._pool.ended(pid)

    def _open_fifo(self) -> str:
        name = f"{system.hostname()}.{os.getpid()}"
        path = os.path.join(self.store.notify, name)
        for old in (path, path + ".tmp"):
            system.remove_quietly(old)
        os.mkfifo(path + ".tmp", 0o600)
        descriptor = os.open(path + ".tmp", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.rename(path + ".tmp", path)
        self.wait_for(descriptor, lambda: self._take_news(descriptor))
        return path

    def _take_news(self, descriptor: int) -> None:
        for line in set(_read_available(descriptor).split(b"\n")):
            self._changed[line.decode("ascii", "replace")] = None

    def _look_at_what_changed(self) -> None:
        """Check once each run with an announced change."""
        changed, self._changed = self._changed, {}
        for run_id in changed:
            try:
                run = self.store.run(run_id)
            except ProtocolError:
                continue
            self.watch.look(run, self.now())

    # -- requests --------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            received = os.read(self._source, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._open = False
            return
        self._received += received
        self._take_lines()

    def _take_lines(self) -> None:
        """Process received lines one by one, while the output buffer has space for replies."""
        begin = 0
        while not self._paused:
            end = self._received.find(b"\n", begin)
            if end < 0:
                break
            self._take_line(self._received[begin:end])
            begin = end + 1
            if self._outgoing_bytes > HIGH_WATER:
                self._pause()
        self._received = self._received[begin:]
        if not self._paused and len(self._received) > protocol.MAX_LINE_BYTES:
            self._received, self._overlong = b"", True

    def _pause(self) -> None:
        """Stop reading requests until the pending output has been read.

        The source is unregistered; polling it without events would report a hang-up while requests
        are unread.
        """
        self._paused = True
        self._poll.unregister(self._source)

    def _resume(self) -> None:
        self._paused = False
        self._poll.register(self._source, select.POLLIN)
        self._take_lines()

    def _take_line(self, line: bytes) -> None:
        if self._overlong:
            self._overlong = False
            line = b" " * (protocol.MAX_LINE_BYTES + 1)
        if not line.strip() and len(line) <= protocol.MAX_LINE_BYTES:
            return
        number: Optional[int] = None
        try:
            request = protocol.decode_line(line)
            number = Fields(request, "request").integer("id", None, 0, 1 << 53)
            del request["id"]
        except ProtocolError as error:
            self.reply(number, {"ok": False, "error": error.to_json()})
            return
        self._operations.handle(number, request)

    def reply(self, number: Optional[int], fields: Json) -> None:
        """Answer a request."""
        self._send({"id": number, **fields})

    # -- replies and events ----------------------------------------------------------------------

    def _send(self, message: Json) -> None:
        line = protocol.encode_line(message)
        self._outgoing.append(line)
        self._outgoing_bytes += len(line)

    def _say(self) -> None:
        """Send the output of one pass of the loop in one write."""
        while self._outgoing and not self._stuck:
            self._outgoing = deque([b"".join(self._outgoing)])
            self._flush()  # the freed space may admit further replies

    def _flush(self) -> None:
        while self._outgoing:
            line = self._outgoing[0]
            try:
                written = os.write(self._target, line)
            except BlockingIOError:
                self._poll.register(self._target, select.POLLOUT)
                self._stuck = True
                return
            except OSError:
                self._open = False
                self._outgoing.clear()
                return
            self._outgoing_bytes -= written
            if written < len(line):
                self._outgoing[0] = memoryview(line)[written:]
            else:
                self._outgoing.popleft()
        if self._stuck:
            self._stuck = False
            self._poll.unregister(self._target)
        if self._paused:
            self._resume()

    # -- children --------------------------------------------------------------------------------

    def work(self, number: int, task: Callable[[], Json], then: Callable[[Json], None]) -> None:
        """Run a long task in a child process and reply to the request with its result."""
        done = background.fork_work(task, self.detach)
        pieces: List[bytes] = []
        self.wait_for(done.descriptor, lambda: self._take_outcome(done, pieces, number, then))

    def _take_outcome(
        self, done: Work, pieces: List[bytes], number: int, then: Callable[[Json], None]
    ) -> None:
        piece = os.read(done.descriptor, 1 << 16)
        if piece:
            pieces.append(piece)
            return
        self.forget(done.descriptor)
        outcome = background.read_outcome(b"".join(pieces))
        then(outcome)
        self.reply(number, outcome)

    def sweep_soon(self, *, whole: bool = False) -> None:
        """Empty the trash after a while without discards: starting jobs have priority.

        Args:
            whole: also remove old checkpoints and secrets without a run, as once an hour.
        """
        now = self.now()
        if whole:
            self._whole_sweep_at = now
        if self._sweep_at is None:
            self._sweep_by = now + LONGEST_UNSWEPT_SECONDS
        self._sweep_at = min(now + SWEEP_SECONDS, self._sweep_by)

    def _sweep(self) -> None:
        self._sweep_at = None
        is_whole = self.now() >= self._whole_sweep_at
        if self._is_sweeping:
            self.sweep_soon(whole=is_whole)
            return
        if not is_whole and not os.listdir(self.store.trash):
            return
        if is_whole:
            self._whole_sweep_at = self.now() + WHOLE_SWEEP_SECONDS

        def sweep() -> Json:
            os.nice(10)
            if is_whole:
                checkpoints.put_away(self.store, time.time())
                secret_files.sweep(self.store)
            versions.put_away(self.store, self.bundle)
            return {"is_done": self.store.empty_trash(TRASH_SECONDS)}

        self._is_sweeping = True
        done = background.fork_work(sweep, self.detach)
        pieces: List[bytes] = []
        self.wait_for(done.descriptor, lambda: self._swept(done, pieces))

    def _swept(self, done: Work, pieces: List[bytes]) -> None:
        piece = os.read(done.descriptor, 1 << 16)
        if piece:
            pieces.append(piece)
            return
        self.forget(done.descriptor)
        self._is_sweeping = False
        if background.read_outcome(b"".join(pieces)).get("is_done") is False:
            self.sweep_soon()

    def start(self, run: Run, lock: int, then: Handler) -> None:
        """Give a claimed run to a runner; ``then`` is called once the job runs or has failed."""
        try:
            versions.note_use(run, self.bundle)
            ready = self._pool.start(run, lock)
        finally:
            os.close(lock)

        def started() -> None:
            self.forget(ready)
            then()

        self.wait_for(ready, started)

    def changed(self, run_id: str) -> None:
        """Check a run soon: its runner or its log writer has ended."""
        self._changed[run_id] = None

    def detach(self) -> None:
        """In a child: detach it from the session."""
        signal.set_wakeup_fd(-1)
        self._outgoing.clear()


def _read_available(descriptor: int) -> bytes:
    pieces: List[bytes] = []
    while True:
        try:
            piece = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            break
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)


def where_am_i() -> Tuple[str, str]:
    """Return the root of this user's runs, and the path from which ``tessera`` was imported."""
    home = os.environ.get("HOME") or os.path.expanduser("~")
    package = os.path.dirname(os.path.abspath(protocol.__file__))
    return os.path.join(home, protocol.ROOT_DIR), os.path.dirname(package)
