"""The tracking endpoint of a run: its socket, the environment of the job, and its reports.

The runner listens on loopback of the network that the job has. In an own network namespace only
the job can connect. On the node's network, the kernel's table of connections names the socket of
a client: it must belong to the user that only this job has, or to a process below the runner.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections import deque
from typing import Deque, Dict, List, Optional, Sequence, Tuple

from tessera import isolation, protocol
from tessera.node import kernel, system
from tessera.node.helper import receive_descriptors, send_descriptors
from tessera.node.runs import Run
from tessera.node.tracking.http_server import HttpServer
from tessera.node.tracking.mlflow_api import TrackingApi
from tessera.protocol import RunSpec

ADDRESS_VARIABLE = "MLFLOW_TRACKING_URI"
OWN_PORT = 41_837
"""Port in a network namespace of the job, where nothing else listens before it starts."""
BACKLOG = 16
OPEN_SECONDS, LAST_SECONDS = 5.0, 0.5
RETRY_SECONDS = 0.05
MOST_WAITING = 4 << 20
_FREEBIND = 15
_TABLE = "/proc/net/tcp"
_MOST_TABLE = 8 << 20


def listen_here() -> Optional[socket.socket]:
    """Listen on loopback of this process's network; None if that fails."""
    try:
        return _listening(0)
    except OSError:
        return None


def listen_in(pid: int) -> Optional[socket.socket]:
    """Listen on loopback of the network namespace of a process of this account.

    Returns:
        The socket; None if the namespace cannot be entered.
    """
    try:
        spaces = kernel.open_network(pid)
    except OSError:
        return None
    try:
        if len(spaces) > 1:
            return _listening_by_child(spaces)
        try:
            with kernel.inside_network(spaces[0]):
                return _listening(OWN_PORT)
        except OSError:
            return _listening_by_child(spaces)  # root without rights over its own network
    finally:
        for descriptor in spaces:
            os.close(descriptor)


def _listening_by_child(spaces: Sequence[int]) -> Optional[socket.socket]:
    """Listen in a child that enters the namespaces; no process can leave a user namespace."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            kernel.enter_network(spaces)
            listener = _listening(OWN_PORT)
            send_descriptors(theirs, b"!", [listener.fileno()])
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(OPEN_SECONDS)
    try:
        _, found = receive_descriptors(ours, 1)
    except OSError:
        found = []
    ours.close()
    system.reap(child, OPEN_SECONDS)
    return socket.socket(fileno=found[0]) if found else None


def _listening(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # The loopback interface of a new namespace may not be up yet.
        found.setsockopt(socket.IPPROTO_IP, _FREEBIND, 1)
        found.bind(("127.0.0.1", port))
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found


def _token(run: Run) -> bytes:
    return system.read_file(run.file(protocol.REPORTS_TOKEN), 128)


class ReportSender:
    """Sends lines to the log writer of the run, with the attempt's token; never blocks."""

    def __init__(self, run: Run) -> None:
        self._token = _token(run)
        self._folder, self._name = os.path.split(run.file(protocol.REPORTS_SOCKET))
        self._socket: Optional[socket.socket] = None
        self._waiting: Deque[bytes] = deque()
        self._size = 0

    @property
    def is_idle(self) -> bool:
        """Return whether no line waits."""
        return not self._waiting

    def add(self, line: bytes) -> None:
        """Send a line now or later; the oldest lines are dropped if no one receives them."""
        self._waiting.append(line)
        self._size += len(line)
        while self._size > MOST_WAITING:
            self._size -= len(self._waiting.popleft())
        self.send()

    def send(self) -> None:
        """Send the waiting lines as far as they are received."""
        while self._waiting:
            try:
                self._connected().send(self._token + b" " + self._waiting[0])
            except BlockingIOError:
                return
            except OSError:
                self.close()  # the writer is being replaced, or the job has removed the socket
                return
            self._size -= len(self._waiting.popleft())

    def _connected(self) -> socket.socket:
        if self._socket is None:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            found.setblocking(False)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                directory = os.open(self._folder, flags)
                try:
                    found.connect(f"/proc/self/fd/{directory}/{self._name}")
                finally:
                    os.close(directory)
            except OSError:
                found.close()
                raise
            self._socket = found
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def finish(self) -> None:
        """Send the waiting lines within a bounded time, and close."""
        end = time.monotonic() + LAST_SECONDS
        self.send()
        while not self.is_idle and time.monotonic() < end:
            time.sleep(RETRY_SECONDS)
            self.send()
        self.close()


class Endpoint:
    """The endpoint of a run; a job that names another tracking server gets none.

    Args:
        run, spec: the run.
    """

    def __init__(self, run: Run, spec: RunSpec) -> None:
        self._run = run
        self._is_wanted = ADDRESS_VARIABLE not in spec.env and bool(_token(run))
        self._uid = -1
        self._listener: Optional[socket.socket] = None
        self._server: Optional[HttpServer] = None
        self._sender: Optional[ReportSender] = None

    @property
    def is_listening(self) -> bool:
        """Return whether the run has a listening socket."""
        return self._listener is not None

    def environment(self, *, is_own: bool, uid: Optional[int]) -> Dict[str, str]:
        """Return the variables of the job; on the node's network, listen from now on.

        Args:
            is_own: whether the job has a network namespace, see ``listen_in``.
            uid: user that only this job has; None if it shares one.
        """
        if not self._is_wanted:
            return {}
        self._uid = -1 if uid is None else uid
        port = OWN_PORT
        if not is_own:
            self._listener = listen_here()
            if self._listener is None:
                return {}
            port = self._listener.getsockname()[1]
        return {ADDRESS_VARIABLE: f"http://127.0.0.1:{port}"}

    def listen_in(self, pid: int) -> None:
        """Listen in the network namespace of a process."""
        if self._is_wanted:
            self._listener = listen_in(pid)

    def open(self, *, is_own: bool) -> None:
        """Serve from now on, if the run has a listening socket."""
        if self._listener is None:
            return
        self._sender = ReportSender(self._run)
        api = TrackingApi(self._sender.add, time.time)
        allowed = (lambda _: True) if is_own else self._is_of_job
        self._server = HttpServer(self._listener, api.answer, allowed, time.monotonic)

    def _is_of_job(self, address: Tuple[str, int]) -> bool:
        if self._listener is None:
            return False
        uid, inode = _owner_of(address[1], self._listener.getsockname()[1])
        return uid == self._uid if self._uid >= 0 else bool(inode) and _is_below(inode)

    def register(self, poll: "select.poll") -> None:
        """Register the sockets to wait for."""
        if self._server is not None and self._sender is not None:
            for number, events in self._server.interests(accepts=self._sender.is_idle):
                poll.register(number, events)

    def next_at(self, now: float) -> float:
        """Return the time of the next turn."""
        if self._server is None or self._sender is None:
            return math.inf
        return now + (self._server.next_at() if self._sender.is_idle else RETRY_SECONDS)

    def serve(self, ready: Sequence[int]) -> None:
        """Send waiting lines, and serve the sockets that are ready."""
        if self._server is not None and self._sender is not None:
            self._sender.send()
            self._server.serve(list(ready))

    def close(self) -> None:
        """Close the sockets; the job has ended, or has not started."""
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()
        sender, self._server, self._sender, self._listener = self._sender, None, None, None
        if sender is not None:
            sender.finish()


def own_user(level: str, uid: Optional[int]) -> Optional[int]:
    """Return the user that only one job has at a level; None if jobs share one."""
    return uid if level == isolation.USER else None


def _owner_of(port: int, served: int) -> Tuple[int, str]:
    """Return user and inode of the socket on loopback that has connected; -1 if unknown."""
    local, remote = f"0100007F:{port:04X}", f"0100007F:{served:04X}"
    table = system.read_file(_TABLE, _MOST_TABLE, any_owner=True)
    for line in table.decode("ascii", "replace").splitlines()[1:]:
        fields: List[str] = line.split()
        if len(fields) > 9 and fields[1] == local and fields[2] == remote:
            return int(fields[7]), fields[9]
    return -1, ""


def _is_below(inode: str) -> bool:
    """Return whether a process below this one has a socket open."""
    wanted = f"socket:[{inode}]"
    for found in system.descendants({os.getpid()}):
        folder = f"/proc/{found.pid}/fd"
        try:
            if any(os.readlink(f"{folder}/{name}") == wanted for name in os.listdir(folder)):
                return True
        except OSError:
            continue  # it has ended, or has closed a file meanwhile
    return False
