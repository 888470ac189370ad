"""The helper: a program that runs as root, by one rule of sudo, for the account of a node.

It only creates sandboxes for users of a configured range. The node's owner installs it
where only root can change it. Its standard input is a socket of the account; each message contains
one end of a pair of sockets, for a request and its reply. A child
handles each request; ``remove`` and ``size`` are done with the rights of the job's user alone.

``python3 -I -S helper.pyz`` is the only command that the rule allows, without arguments and
environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import signal
import socket
import stat
import struct
import sys
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from tessera.node import helper_requests, kernel, removal, sandbox, sizes
from tessera.node.accounts import changeable_part, peer_of
from tessera.node.helper_requests import RequestError, Rules

MODULES = (
    *("tessera/__init__.py", "tessera/node/__init__.py", "tessera/node/accounts.py"),
    *("tessera/node/helper.py", "tessera/node/helper_requests.py", "tessera/node/kernel.py"),
    *("tessera/node/ownership.py", "tessera/node/removal.py", "tessera/node/sandbox.py"),
    *("tessera/node/sandbox_root.py", "tessera/node/sizes.py"),
)
"""All modules of the program."""
MAIN = "from tessera.node.helper import main\n\nmain()\n"
HELLO, RUN, REMOVE, SIZE = "hello", "run", "remove", "size"
PID = "pid"
"""Prefix of the line with the first process of a sandbox."""
MOST_BYTES = 4 << 20
MOST_DESCRIPTORS = 8
MOST_SECONDS = 60
"""Limit of a removal, and of the wait for a request."""
MEASURE_SECONDS = 600
_HEAD = struct.Struct("=I")


def digest() -> str:
    """Return the expected digest of the helper's code, in hexadecimal."""
    import tessera  # noqa: PLC0415 - its loader reads the files

    top = os.path.dirname(os.path.dirname(os.path.abspath(tessera.__file__)))
    read = tessera.__spec__.loader.get_data  # type: ignore[union-attr]
    found = hashlib.sha256(MAIN.encode("ascii"))
    for name in MODULES:
        content = read(os.path.join(top, name))
        found.update(b"%s %d\n" % (name.encode("ascii"), len(content)))
        found.update(content)
    return found.hexdigest()


# -- messages ------------------------------------------------------------------------------------


def send_descriptors(line: socket.socket, content: bytes, descriptors: List[int]) -> None:
    """Send a few bytes with descriptors."""
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    kind = (socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)
    line.sendmsg([content], [kind] if descriptors else [], socket.MSG_NOSIGNAL)


def receive_descriptors(line: socket.socket, size: int) -> Tuple[bytes, List[int]]:
    """Receive at most ``size`` bytes and the descriptors that come with them."""
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
    content, extra, _, _ = line.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    found: List[int] = []
    for level, kind, rights in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(rights) // 4
            found += struct.unpack(f"{count}i", rights[: count * 4])
    return content, found


def send_request(line: socket.socket, request: Dict[str, Any], descriptors: List[int]) -> None:
    """Send a request with its descriptors."""
    content = json.dumps(request).encode("ascii")
    send_descriptors(line, _HEAD.pack(len(content)), descriptors)
    line.sendall(content)


def _receive_request(line: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Receive a request and its descriptors, from an account that may send anything.

    Raises:
        RequestError: the request is malformed or too large.
        OSError: the request does not arrive in time.
    """
    head, descriptors = receive_descriptors(line, _HEAD.size)
    (size,) = _HEAD.unpack(head) if len(head) == _HEAD.size else (MOST_BYTES + 1,)
    if size > MOST_BYTES:
        raise RequestError(f"a request has at most {MOST_BYTES} bytes")
    content = bytearray()
    while len(content) < size:
        piece = line.recv(min(1 << 16, size - len(content)))
        if not piece:
            raise RequestError("the request is not complete")
        content += piece
    try:
        found = json.loads(bytes(content))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError("the request is not a JSON object")
    return found, descriptors


# -- the program ---------------------------------------------------------------------------------


def main() -> NoReturn:
    """Serve the account that started this program through sudo, until it disconnects."""
    os.chdir("/")
    os.umask(0o022)
    try:
        line = socket.socket(fileno=os.dup(0))
        helper = Helper(_rules(line))
    except (OSError, RequestError) as error:
        sys.stderr.write(f"tessera helper: {error}\n")
        sys.exit(1)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    kernel.set_process(kernel.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # the helper ends with the last process that uses it
    helper.serve(line)


def _rules(line: socket.socket) -> Rules:
    """Build the rules for the account that started this program.

    Raises:
        RequestError: the rule did not start the program, or the account can change it.
        OSError: standard input is not a socket.
    """
    if os.geteuid() != 0 or os.getuid() != 0:
        raise RequestError("needs root")
    part = changeable_part(sys.argv[0])
    if part:
        raise RequestError(f"{part} is writable by users other than root")
    account = peer_of(line)
    if account.uid == 0 or os.environ.get("SUDO_UID") != str(account.uid):
        raise RequestError("was not started through sudo by its account")
    try:
        home = pwd.getpwuid(account.uid).pw_dir
    except KeyError:
        raise RequestError(f"user id {account.uid} has no account") from None
    return helper_requests.read_rules(account, home)


class Helper:
    """Receives requests and forks a child for each of them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._digest = digest()
        self._verbs: Dict[str, Callable[[socket.socket, Dict[str, Any], List[int]], None]] = {
            HELLO: self._hello,
            RUN: self._run,
            REMOVE: self._remove,
            SIZE: self._size,
        }

    def serve(self, line: socket.socket) -> NoReturn:
        """Serve until every process of the account has closed its end of the socket."""
        while True:
            try:
                content, descriptors = receive_descriptors(line, 1)
            except ConnectionError:
                break
            if not content:
                break
            try:
                is_child = len(descriptors) == 1 and os.fork() == 0
            except OSError:  # too many processes: the connection closes without a reply
                is_child = False
            if is_child:
                self._handle(line, descriptors[0])
            for descriptor in descriptors:
                os.close(descriptor)
        os._exit(0)

    def _handle(self, line: socket.socket, descriptor: int) -> NoReturn:
        """In a child: handle the request on a socket. Never returns."""
        try:
            line.close()
            for number in (signal.SIGCHLD, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)  # the account may have set it to be ignored
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            answer = socket.socket(fileno=descriptor)
            if answer.family != socket.AF_UNIX or answer.type != socket.SOCK_STREAM:
                os._exit(1)
            answer.settimeout(MOST_SECONDS)
            try:
                self._answer(answer)
            except (RequestError, OSError, ValueError) as error:
                text = " ".join(f"{error}".split())[:500]
                answer.send(f"failed check 0 {text}\n".encode("utf-8", "replace"))
        finally:
            os._exit(1)

    def _answer(self, line: socket.socket) -> None:
        account = peer_of(line)
        if account.uid != self._rules.account.uid:
            raise RequestError("the socket belongs to another account")
        request, descriptors = _receive_request(line)
        if request.get("digest") != self._digest and request.get("verb") != HELLO:
            raise RequestError("the version of the helper differs from that of the node program")
        verb = self._verbs.get(str(request.get("verb")))
        if verb is None:
            raise RequestError("unknown request")
        # The groups are those of the process that asks, which may have given up some.
        self._rules = self._rules._replace(account=account)
        verb(line, request, descriptors)

    def _hello(self, line: socket.socket, _request: Dict[str, Any], _: List[int]) -> None:
        found = {"digest": self._digest, "uids": [self._rules.first, self._rules.last]}
        line.sendall(json.dumps(found).encode("ascii") + b"\n")

    # -- sandboxes -------------------------------------------------------------------------------

    def _run(self, line: socket.socket, request: Dict[str, Any], descriptors: List[int]) -> None:
        """Create a sandbox, and wait until the kernel has ended all its processes.

        The socket becomes the channel of ``sandbox.enter``. It is closed here last, so that its
        end is the end of all of the sandbox's processes.
        """
        plan = helper_requests.plan_of(request.get("plan"), self._rules)
        if len(descriptors) not in (1, 2):
            raise RequestError("a run needs its output and at most one network")
        output, *networks = descriptors
        helper_requests.check_output(output, self._rules.account)
        for network in networks:
            kernel.join_network(network, self._rules.account.uid)
        line.setblocking(True)
        pid = kernel.fork_into(sandbox.namespaces_of(plan))
        if pid == 0:
            kernel.close_others({line.fileno(), output})
            sandbox.enter(plan, (0, 0), output, line.fileno())
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(b"%s %d\n" % (PID.encode("ascii"), pid), socket.MSG_NOSIGNAL)
        os.waitpid(pid, 0)
        os._exit(0)

    # -- directories of jobs ---------------------------------------------------------------------

    def _remove(self, line: socket.socket, request: Dict[str, Any], tops: List[int]) -> None:
        """Empty directories, and let the account do the same, with the rights of their user."""
        seconds = request.get("seconds")
        if not isinstance(seconds, (int, float)) or not 0 <= seconds <= MOST_SECONDS:
            raise RequestError("seconds is malformed")
        self._become_user_of(request, tops, int(seconds) + MOST_SECONDS)
        done = [removal.empty_opened(top, seconds) for top in tops]
        line.sendall(json.dumps({"is_done": all(done)}).encode("ascii") + b"\n")

    def _size(self, line: socket.socket, request: Dict[str, Any], tops: List[int]) -> None:
        """Measure directories with the rights of their user."""
        enough = request.get("enough")
        if not isinstance(enough, int):
            raise RequestError("enough is malformed")
        self._become_user_of(request, tops, MEASURE_SECONDS)
        os.nice(10)
        signal.signal(signal.SIGALRM, _end_measurement)
        try:
            size = sizes.size_of([f"/proc/self/fd/{top}/." for top in tops], enough)
        except (OSError, RecursionError):  # nested too deeply, or too many files: a hostile job
            size = enough + 1
        line.sendall(json.dumps({"size": size}).encode("ascii") + b"\n")

    def _become_user_of(self, request: Dict[str, Any], tops: List[int], seconds: int) -> None:
        """Become the job's user permanently, with a job's rights, for a bounded time.

        Raises:
            RequestError: the user is not one of the range, or a descriptor is not a directory.
        """
        uid = helper_requests.uid_of(request.get("uid"), self._rules)
        sandbox.change_user(uid)
        sandbox.give_up_rights()
        signal.alarm(seconds)
        for top in tops:
            if not stat.S_ISDIR(os.fstat(top).st_mode):
                raise RequestError("not a directory")
            if os.fstat(top).st_mode & 0o770 != 0o770:
                os.chmod(f"/proc/self/fd/{top}", 0o770)  # noqa: S103 - the account's group


def _end_measurement(*_: object) -> NoReturn:
    raise TimeoutError
