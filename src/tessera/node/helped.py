"""The runner's side of the helper: sandboxes of level ``user`` without root.

A session starts the helper once, through sudo, and all its runners share it; the helper ends with
the last of them. The start does not block, since the socket queues the first requests.
"""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import stat
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set

from tessera import isolation
from tessera.node import helper, helper_requests, kernel, network_holder, sandbox, system
from tessera.node.accounts import changeable_part
from tessera.node.boxes import START_SECONDS, Sandbox, SandboxError, check_end
from tessera.node.cgroups import Group
from tessera.node.sandbox_root import Plan

PROGRAM = "/usr/local/lib/tessera/helper.pyz"
COMMAND = ("/usr/bin/python3", "-I", "-S", PROGRAM)
"""The only command that the sudo rule allows."""
HELLO_SECONDS = 20.0
_SEARCH = ("/usr/bin", "/usr/local/bin", "/bin", "/run/wrappers/bin")
_MOST_ANSWER = 1 << 16


class HelperError(Exception):
    """The helper does not work here; the message is for people.

    Attributes:
        cause: one of ``isolation.CAUSES``.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class _Helper(NamedTuple):
    """A started helper, and the file of its errors."""

    line: socket.socket
    errors: int


_started: List[_Helper] = []


@functools.lru_cache(maxsize=1)
def expected() -> str:
    """Return the digest of the helper of this code; call it before anything is forked."""
    return helper.digest()


def descriptors() -> Set[int]:
    """Return descriptors that forked processes of the session must leave open for its helper."""
    return {number for one in _started for number in (one.line.fileno(), one.errors)}


def make_ready() -> None:
    """Start the helper unless it runs. Returns at once, even on failure."""
    expected()
    if _started and not _hung_up(_started[0].line):
        return
    close()
    _started.append(_start())


def close() -> None:
    """Close the connection to the helper, which ends with the last process that uses it."""
    for one in _started:
        one.line.close()
        os.close(one.errors)
    _started.clear()


def _hung_up(line: socket.socket) -> bool:
    poll = select.poll()
    poll.register(line, 0)
    return bool(poll.poll(0))


def _start() -> _Helper:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    errors, saying = os.pipe()
    sudo = system.which("sudo", _SEARCH)
    if os.fork() == 0:
        try:
            os.setsid()  # signals to the session's process group must not reach the helper
            system.default_signals()
            null = os.open(os.devnull, os.O_WRONLY)
            for descriptor, target in ((theirs.fileno(), 0), (null, 1), (saying, 2)):
                os.dup2(descriptor, target)
            kernel.close_others(set())
            os.execve(sudo, ["sudo", "-n", "--", *COMMAND], {"LC_ALL": "C"})  # noqa: S606
        finally:
            os._exit(127)
    theirs.close()
    os.close(saying)
    os.set_blocking(errors, False)
    return _Helper(ours, errors)


def _connected() -> "tuple[socket.socket, socket.socket]":
    """Create a pair of sockets; the helper has the second one.

    Raises:
        OSError: the helper has ended.
    """
    make_ready()
    ours, theirs = socket.socketpair()
    try:
        helper.send_descriptors(_started[0].line, b"!", [theirs.fileno()])
    except OSError:
        ours.close()
        theirs.close()
        raise
    return ours, theirs


def _ask(fields: Dict[str, Any], opened: Sequence[int], seconds: float) -> Dict[str, Any]:
    """Send a request and wait for its answer.

    Raises:
        OSError: the helper has ended, refuses, or does not respond in time.
    """
    ours, theirs = _connected()
    with ours, theirs:
        ours.settimeout(seconds)
        helper.send_request(ours, {**fields, "digest": expected()}, list(opened))
        theirs.close()
        received = b""
        while not received.endswith(b"\n") and len(received) < _MOST_ANSWER:
            piece = ours.recv(4096)
            if not piece:
                break
            received += piece
    try:
        found = json.loads(received)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OSError(f"the helper: {received.decode('utf-8', 'replace')[:300] or 'no response'}")
    return found


# -- trying --------------------------------------------------------------------------------------


def check() -> None:
    """Check that the helper of this version is installed and that sudo starts it.

    Raises:
        HelperError: the check failed, with the cause.
    """
    if not os.path.lexists(PROGRAM):
        raise HelperError(isolation.NO_ROOT, f"{PROGRAM} not found")
    part = changeable_part(PROGRAM)
    if part:
        message = f"{part} is writable by users other than root"
        raise HelperError(isolation.HELPER_UNSAFE, message)
    if not system.which("sudo", _SEARCH):
        raise HelperError(isolation.NO_ROOT, f"sudo is not in {', '.join(_SEARCH)}")
    close()  # a running helper may be older than the installed one
    make_ready()
    try:
        found = _ask({"verb": helper.HELLO}, [], HELLO_SECONDS)
    except OSError as error:
        said = _errors()
        cause = isolation.HELPER_FAILED if said.startswith("tessera") else isolation.NO_ROOT
        raise HelperError(cause, said or f"{error}") from None
    if found.get("digest") != expected():
        message = f"the version of {PROGRAM} differs from that of the node program"
        raise HelperError(isolation.HELPER_DIFFERS, message)


def _errors() -> str:
    """Read the output of sudo or the helper before it ended."""
    try:
        return " ".join(os.read(_started[0].errors, 4096).decode("utf-8", "replace").split())
    except OSError:
        return ""


def try_out(plan: Plan) -> None:
    """Create a sandbox and run its program to the end.

    Raises:
        SandboxError: the sandbox could not be created, or the program failed.
    """
    reader, writer = os.pipe()
    box = HelpedSandbox(plan)
    try:
        box.start(writer)
        poll = select.poll()
        poll.register(box.descriptor(), select.POLLIN)
        end = box.end()  # the end may have arrived with the last report of the start
        while end is None and not box.is_gone() and poll.poll(START_SECONDS * 1000):
            end = box.end()
    finally:
        box.close()
        os.close(reader)
        os.close(writer)
    check_end(plan, end)


# -- sandboxes -----------------------------------------------------------------------------------


class HelpedSandbox(Sandbox):
    """A sandbox of the helper; its processes are not children of this process."""

    def start(
        self,
        output: int,
        group: Optional[Group] = None,
        connect: Optional[Callable[[int], Callable[[], None]]] = None,
    ) -> None:
        """Create the sandbox through the helper and execute the job; as in ``Sandbox``.

        Args:
            output: a pipe, for the job's output.
            group: as in ``Sandbox``; the first process is moved into it by this process.
            connect: as in ``Sandbox``, with a process that has only the network.
        """
        holder = None
        try:
            opened = [output]
            if self._plan.own_network:
                holder = network_holder.hold(self._plan.blocked)
                if connect is not None:
                    connect(holder.pid)()
                opened.append(holder.network)
            self._channel.close()
            self._theirs.close()
            self._channel, self._theirs = _connected()
            self._channel.settimeout(START_SECONDS)
            fields = {
                "verb": helper.RUN,
                "digest": expected(),
                "plan": helper_requests.fields_of(self._plan),
            }
            helper.send_request(self._channel, fields, opened)
            self._theirs.close()
            self.pid = int(self._line(helper.PID))
            self.is_held = group is not None and group.hold(self.pid)
            is_bound = group is not None and self.is_held and group.bounds_processes
            self._order(sandbox.GO_ON_HELD if is_bound else sandbox.GO_ON)
            self._line("started")
        except (OSError, SandboxError) as error:
            self.close()
            if isinstance(error, SandboxError):
                raise
            raise SandboxError("start", error.errno or 0, f"the helper: {error}") from None
        finally:
            if holder is not None:
                holder.close()
        self._channel.setblocking(False)

    def descriptor(self) -> int:
        """Return a descriptor that is readable once the job or the whole sandbox has ended."""
        return self._channel.fileno()

    def is_gone(self) -> bool:
        """Return whether all processes of the sandbox have ended, and its reports were read."""
        try:
            return not self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


# -- directories of jobs -------------------------------------------------------------------------


def size_of(directories: Sequence[str], enough: int, uid: int) -> int:
    """Return the size of a job's directories, see ``sizes.size_of``.

    Raises:
        OSError: the helper does not respond.
    """
    opened = _opened(directories)
    try:
        fields = {"verb": helper.SIZE, "uid": uid, "enough": enough}
        return int(_ask(fields, opened, helper.MEASURE_SECONDS + START_SECONDS)["size"])
    finally:
        for descriptor in opened:
            os.close(descriptor)


def empty(path: str, seconds: float) -> bool:
    """Empty a directory of a job's user, and grant this account access; does not raise errors.

    Returns:
        Whether it is empty.
    """
    opened = _opened([path])
    try:
        for descriptor in opened:
            uid = os.fstat(descriptor).st_uid
            limited = min(seconds, float(helper.MOST_SECONDS))
            fields = {"verb": helper.REMOVE, "uid": uid, "seconds": limited}
            return bool(_ask(fields, opened, limited + START_SECONDS)["is_done"])
    except (OSError, KeyError):
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


def is_of_job(path: str) -> bool:
    """Return whether a directory belongs to another user, as at level ``user``.

    False for a runner that is root, which needs no helper.
    """
    if os.getuid() == 0:
        return False
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid not in (0, os.getuid())


def _opened(directories: Sequence[str]) -> List[int]:
    """Return the descriptors of the existing directories."""
    found = []
    for path in directories:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            found.append(os.open(path, flags))
        except OSError:
            continue
    return found
