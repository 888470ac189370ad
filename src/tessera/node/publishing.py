"""Publishing of the declared ports of a job with its own network.

A process of the runner listens on the node, and connects to the job inside of its network. It
binds its ports before it enters that network, since a socket belongs to the network of its
creation.
It ends with the runner, which also ends it with the job.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
from typing import Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from tessera.node import cgroups, kernel, system
from tessera.node.boxes import SandboxError
from tessera.node.cgroups import Group

PIECE_BYTES = 64 << 10
PIECES_AT_ONCE = 16
"""Pieces that are forwarded per connection before the next connection is served."""
BACKLOG = 128
MOST_DESCRIPTORS = 8192
_OWN_DESCRIPTORS = 160  # listeners, standard streams, and temporary descriptors
_READY = b"1"


class Publication(NamedTuple):
    """Published ports of a job.

    Attributes:
        ports: TCP ports, the same outside and inside.
        host: the node's address to listen on, or empty for all.
        target: the job's address in its network.
        uid: the Unix user that the process becomes; None for the runner's.
    """

    ports: Tuple[int, ...]
    host: str
    target: str
    uid: Optional[int]


def publish(
    what: Publication, spaces: Sequence[int], group: Optional[Group]
) -> Tuple[int, Callable[[], None]]:
    """Start the process that publishes ports.

    Args:
        what: the ports to publish.
        spaces: the job's network, see ``kernel.open_network``.
        group: the control groups of the job, also for this process.

    Returns:
        The pid of the process, and a function that waits until the ports accept connections; it
        raises ``SandboxError`` if a port is in use, or the network cannot be entered.
    """
    runner = os.getpid()
    said, saying = os.pipe()
    child, _ = cgroups.fork(group)
    if child == 0:
        _become_publisher(what, spaces, runner, saying)
    os.close(saying)

    def wait() -> None:
        answer = system.read_all(said, 1000)
        if answer != _READY:
            os.waitpid(child, 0)
            message = answer.decode("utf-8", "replace") or "the process ended"
            raise SandboxError("network", 0, f"ports are not published: {message}")

    return child, wait


def _become_publisher(
    what: Publication, spaces: Sequence[int], runner: int, saying: int
) -> NoReturn:
    """In the child: prepare, report, and pass connections on. Never returns."""
    try:
        try:
            _ignore_signals()
            system.name_process("tessera-ports")
            system.redirect_standard_streams()
            kernel.close_others({saying, *spaces})
            listeners = _listen(what)
            kernel.enter_network(spaces)
            kernel.close_others({saying, *(one.fileno() for one in listeners)})
            _drop_privileges(what.uid)
            system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)  # setuid clears it
            if os.getppid() != runner:
                os._exit(1)
            publisher = _Publisher(listeners, what.target)
        except OSError as error:
            os.write(saying, f"{error}".encode("utf-8", "replace")[:900])
            os._exit(1)
        os.write(saying, _READY)
        os.close(saying)
        publisher.serve()
    finally:
        os._exit(127)


def _ignore_signals() -> None:
    """Ignore signals; the runner ends this process: the job has a grace period."""
    system.default_signals()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _listen(what: Publication) -> List[socket.socket]:
    found = []
    for port in what.ports:
        try:
            found.append(_listener(what.host, port))
        except OSError as error:
            where = what.host or "all addresses"
            raise OSError(error.errno, f"port {port} on {where}: {error.strerror}") from None
    return found


def _listener(host: str, port: int) -> socket.socket:
    if not host and socket.has_ipv6:
        try:
            return _bound(socket.AF_INET6, "::", port)
        except OSError:
            pass  # no IPv6, or the port is in use, which IPv4 detects as well
    return _bound(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)


def _bound(family: int, host: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        made.bind((host, port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _drop_privileges(uid: Optional[int]) -> None:
    kernel.drop_capability_bounds()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.drop_capabilities()
    kernel.set_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.set_process(kernel.PR_SET_DUMPABLE, 0)


class _Flow:
    """One direction of a connection, with the bytes that the receiver has not read yet."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source, self._target = source, target
        self.left = memoryview(b"")
        self.ended = False

    def move(self) -> None:
        """Forward until a side would block; at most ``PIECES_AT_ONCE`` pieces.

        Raises:
            OSError: the connection is broken.
        """
        for _ in range(PIECES_AT_ONCE):
            if not self.left and not self.ended:
                try:
                    piece = self._source.recv(PIECE_BYTES)
                except BlockingIOError:
                    return
                self.left = memoryview(piece)
                if not piece:
                    self.ended = True
                    self._target.shutdown(socket.SHUT_WR)
            if not self.left:
                return
            try:
                self.left = self.left[self._target.send(self.left) :]
            except BlockingIOError:
                return


class _Link:
    """A connection from outside and its counterpart inside."""

    def __init__(self, outside: socket.socket, inside: socket.socket) -> None:
        self.sides = (outside, inside)
        self._in, self._out = _Flow(outside, inside), _Flow(inside, outside)
        self._is_connected = False

    @property
    def ended(self) -> bool:
        """Return whether both directions have ended and all bytes were forwarded."""
        return all(flow.ended and not flow.left for flow in (self._in, self._out))

    def interests(self) -> Tuple[int, int]:
        """Return the events to wait for, of the outer and the inner side."""
        if not self._is_connected:
            return 0, select.EPOLLOUT
        return (
            _interest(self._in, self._out),
            _interest(self._out, self._in),
        )

    def move(self) -> None:
        """Forward available bytes.

        Raises:
            OSError: a side is broken, or no process listens inside.
        """
        if not self._is_connected:
            number = self.sides[1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number))
            self._is_connected = _has_peer(self.sides[1])
        if self._is_connected:
            self._in.move()
            self._out.move()

    def close(self) -> None:
        for side in self.sides:
            side.close()


def _has_peer(side: socket.socket) -> bool:
    try:
        side.getpeername()
    except OSError:
        return False
    return True


def _interest(reads: _Flow, writes: _Flow) -> int:
    found = 0
    if not reads.left and not reads.ended:
        found |= select.EPOLLIN
    if writes.left:
        found |= select.EPOLLOUT
    return found


class _Publisher:
    """Accepts and forwards connections, up to the limit of its descriptors."""

    def __init__(self, listeners: List[socket.socket], target: str) -> None:
        self._target = target
        self._listeners = {one.fileno(): one for one in listeners}
        self._links: Dict[int, _Link] = {}
        self._events: Dict[int, int] = {}
        self._poll = select.epoll()
        self._accepts = False
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = min(hard, MOST_DESCRIPTORS) if hard > 0 else MOST_DESCRIPTORS
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        self._most = max(2, limit - _OWN_DESCRIPTORS - len(listeners))
        self._accept_more()

    def serve(self) -> NoReturn:
        """Forward connections until this process is killed."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._listeners:
                    self._accept(self._listeners[descriptor])
                elif descriptor in self._links:
                    self._move(self._links[descriptor])
            self._accept_more()

    def _accept_more(self) -> None:
        """Accept new connections while descriptors are left."""
        accepts = len(self._links) + 2 <= self._most
        if accepts != self._accepts:
            self._accepts = accepts
            for descriptor in self._listeners:
                self._watch(descriptor, select.EPOLLIN if accepts else 0)

    def _accept(self, listener: socket.socket) -> None:
        try:
            outside, _ = listener.accept()
        except OSError:
            return  # the connection has ended
        inside = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        link = _Link(outside, inside)
        port = listener.getsockname()[1]
        try:
            outside.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for side in link.sides:
                side.setblocking(False)
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            inside.connect_ex((self._target, port))
        except OSError:
            link.close()
            return
        for side in link.sides:
            self._links[side.fileno()] = link
        self._watch_link(link)

    def _move(self, link: _Link) -> None:
        try:
            link.move()
            is_over = link.ended
        except OSError:
            is_over = True
        if not is_over:
            self._watch_link(link)
            return
        for side in link.sides:
            del self._links[side.fileno()]
            self._watch(side.fileno(), 0)
        link.close()

    def _watch_link(self, link: _Link) -> None:
        for side, events in zip(link.sides, link.interests()):  # noqa: B905 - new in Python 3.10
            self._watch(side.fileno(), events)

    def _watch(self, descriptor: int, events: int) -> None:
        # Without events to wait for, epoll would report the end of a connection repeatedly.
        known = self._events.pop(descriptor, 0)
        if known and not events:
            self._poll.unregister(descriptor)
        elif events and not known:
            self._poll.register(descriptor, events)
        elif events != known:
            self._poll.modify(descriptor, events)
        if events:
            self._events[descriptor] = events
