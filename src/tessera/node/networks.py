"""The own network of a plain job: a namespace with loopback, ports, and optional outside
access.

Outside access uses ``slirp4netns``, which forwards connections as the runner's user, without root.
The namespace has no routes to the node itself and to metadata services. It has no IPv6. Declared
ports are published by ``publishing``.

A job can bind a socket to the interface; the kernel then treats every address without a route as a
neighbour. Only the gateway and the resolver respond. ``slirp4netns`` does not connect the gateway
(``--disable-host-loopback``), and connects the resolver to port 53 only (libslirp 4.3).
"""

from __future__ import annotations

import os
import re
import select
import signal
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tessera import job_networks
from tessera.isolation import OWN_NETWORK, SHARED_NETWORK, SHARED_UID
from tessera.job_networks import CONNECTED, ISOLATED, NetworkProbe
from tessera.node import (
    background,
    cgroups,
    confinement,
    firewall,
    kernel,
    publishing,
    sandbox,
    system,
)
from tessera.node.boxes import SandboxError
from tessera.node.cgroups import Group
from tessera.node.publishing import Publication
from tessera.protocol import ProtocolError, RunSpec

CONNECTOR = "slirp4netns"
RESOLVER = "10.0.2.3"
PROTECTIONS = ("--enable-sandbox", "--enable-seccomp")
"""Options of the connector that deny it unneeded files and system calls."""
LEAST_LIBSLIRP = (4, 3)
"""Versions below it connect all ports of the resolver's address to the node's resolver."""
_LIBSLIRP = re.compile(r"^libslirp: (\d+)\.(\d+)", re.MULTILINE)
_CONNECTOR_STAGE = "connector"
_DEVICE = "tap0"
_TUN = "/dev/net/tun"
START_SECONDS = 10.0
_known: Dict[str, List[NetworkProbe]] = {}


class Choice(NamedTuple):
    """The network of a run.

    Attributes:
        network: ``own`` or ``shared``.
        is_connected: whether it has access to networks outside of the node.
        options: options of the connector of an own network.
        ports: published on the node, of an own network.
        host: the node's address at which they are published; empty for all.
    """

    network: str
    is_connected: bool = False
    options: Tuple[str, ...] = ()
    ports: Tuple[int, ...] = ()
    host: str = ""

    @property
    def is_own(self) -> bool:
        """Return whether the run has its own network namespace."""
        return self.network == OWN_NETWORK


NODE_NETWORK = Choice(SHARED_NETWORK, is_connected=True)


def setting_of(root: str) -> str:
    """Return the setting in the node's file; a file that cannot be read isolates."""
    try:
        return confinement.declaration(root).job_network
    except ProtocolError:
        return ISOLATED


def choose(root: str, spec: RunSpec) -> Choice:
    """Return the network of a sandboxed run on this node."""
    if spec.network != OWN_NETWORK:
        return NODE_NETWORK
    probes = known()
    found = job_networks.network_for(
        spec.job_network or setting_of(root) or job_networks.AUTO, probes
    )
    if found == job_networks.SHARED:
        return NODE_NETWORK
    options = next((probe.means for probe in probes if probe.network == found), [])
    ports = tuple(sorted(set(spec.ports)))
    return Choice(OWN_NETWORK, found == CONNECTED, tuple(options), ports, spec.bind_host)


class Connection:
    """Processes for outside access and published ports of a namespace.

    Attributes:
        pids: process IDs of the connection.
        connector: the pid of the one for outside access, 0 without. When it ends, the kernel
            waits for about 20 ms until its device is unused.
    """

    def __init__(self) -> None:
        self.pids: List[int] = []
        self.connector = 0
        self._waits: List[Callable[[], None]] = []

    def add(self, pid: int, wait: Callable[[], None]) -> None:
        """Add a process, and the function that waits for it."""
        self.pids.append(pid)
        self._waits.append(wait)

    def wait(self) -> None:
        """Wait until all processes are ready.

        Raises:
            SandboxError: a part fails.
        """
        for one in self._waits:
            one()


def connect(
    pid: int, choice: Choice, uid: Optional[int], group: Optional[Group] = None
) -> Connection:
    """Start outside access and published ports for the namespace of a sandbox's first process.

    Args:
        pid: pid of that process.
        choice: an own network.
        uid: the job's user; None for the runner's own.
        group: the control groups of the job, also for the processes of the connection.

    Raises:
        SandboxError: the namespace cannot be entered, or a port is in use.
    """
    connection = Connection()
    if not choice.is_connected and not choice.ports:
        return connection
    try:
        spaces = kernel.open_network(pid)
    except OSError as error:
        raise SandboxError("network", error.errno or 0, f"{error}") from None
    try:
        if choice.is_connected:
            _start_connector(connection, spaces, choice.options, group)
        if choice.ports:
            what = Publication(choice.ports, choice.host, sandbox.INNER_ADDRESS, uid)
            connection.add(*publishing.publish(what, spaces, group))
    finally:
        for descriptor in spaces:
            os.close(descriptor)
    return connection


def blocked_by(choice: Choice) -> Tuple[str, ...]:
    """Return the networks that are unreachable from a connected own network."""
    if not choice.is_own or not choice.is_connected:
        return ()
    return tuple(network for network in firewall.hidden() if firewall.family(network) == 4)


def resolver_of(choice: Choice) -> str:
    """Return the content of ``/etc/resolv.conf`` in the namespace; empty for the node's own."""
    return f"nameserver {RESOLVER}\n" if choice.is_own and choice.is_connected else ""


def _places() -> List[str]:
    path = os.environ.get("PATH", "").split(os.pathsep)
    return [*filter(os.path.isabs, path), *firewall.SEARCH]


# -- the connector -------------------------------------------------------------------------------


def _start_connector(
    connection: Connection,
    spaces: Sequence[int],
    options: Sequence[str],
    group: Optional[Group],
) -> None:
    """Start the connector as a child of this process; it ends with this process or the job."""
    ready, tell_ready = os.pipe()
    said, saying = os.pipe()
    child, _ = cgroups.fork(group)
    if child == 0:
        _become_connector(spaces, options, tell_ready, saying)
    os.close(tell_ready)
    os.close(saying)
    connection.connector = child
    connection.add(child, lambda: _wait_for_connector(child, ready, said))


def _wait_for_connector(child: int, ready: int, said: int) -> None:
    """Wait until the connector has configured the namespace.

    Raises:
        SandboxError: the connector failed and has ended.
    """
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    poll.poll(START_SECONDS * 1000)
    os.set_blocking(ready, False)
    try:
        is_ready = os.read(ready, 1) == b"1"
    except BlockingIOError:
        is_ready = False
    os.close(ready)
    if is_ready:
        os.close(said)
        return
    system.kill_quietly(child, signal.SIGKILL)
    os.waitpid(child, 0)
    output = system.read_all(said, 4096).decode("utf-8", "replace")
    message = f"{CONNECTOR} does not connect the namespace: {' '.join(output.split())[:300]}"
    raise SandboxError(_CONNECTOR_STAGE, 0, message)


def _become_connector(
    spaces: Sequence[int], options: Sequence[str], ready: int, saying: int
) -> None:
    """In the child: execute the connector. Never returns."""
    try:
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        system.default_signals()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # its errors are not read after it is ready
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor, target in ((null, 0), (null, 1), (saying, 2)):
            os.dup2(descriptor, target)
        kernel.close_others({ready, *spaces})
        for descriptor in (ready, *spaces):
            os.set_inheritable(descriptor, True)
        if os.getuid() == 0:
            # With --enable-sandbox, it unmounts all, which would also unmount shared mounts of the
            # node.
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        path = system.which(CONNECTOR, _places())
        os.execv(path, _command(spaces, options, ready))  # noqa: S606
    finally:
        os._exit(127)


def _command(spaces: Sequence[int], options: Sequence[str], ready: int) -> List[str]:
    command = [CONNECTOR, "--configure", "--mtu=65520", "--disable-host-loopback", *options]
    command += [f"--ready-fd={ready}", "--netns-type=path"]
    *user, network = (f"/proc/self/fd/{descriptor}" for descriptor in spaces)
    command += [f"--userns-path={path}" for path in user]
    return [*command, network, _DEVICE]


# -- trying --------------------------------------------------------------------------------------


def known() -> List[NetworkProbe]:
    """Return the possible own networks of this node, tried once per process."""
    if CONNECTOR not in _known:
        done = background.fork_work(
            lambda: {"networks": [one.to_json() for one in probe()]}, lambda: None
        )
        outcome = background.read_outcome(system.read_all(done.descriptor, 1 << 16))
        os.waitpid(done.pid, 0)
        items = outcome.get("networks")
        found = items if isinstance(items, list) else []
        remember([NetworkProbe.from_json(item) for item in found])
    return _known[CONNECTOR]


def remembered() -> Optional[List[NetworkProbe]]:
    """Return the known own networks of this node; None before the first trial."""
    return _known.get(CONNECTOR)


def remember(probes: List[NetworkProbe]) -> None:
    """Store the outcomes for later choices."""
    _known[CONNECTOR] = probes


def probe() -> List[NetworkProbe]:
    """Try each kind of own network with a temporary sandbox. Call it in a child."""
    cause, detail = _tried(Choice(OWN_NETWORK))
    if cause:
        missing = job_networks.NO_SANDBOX
        return [
            NetworkProbe(network, available=False, cause=missing, detail=detail[:300])
            for network in (ISOLATED, CONNECTED)
        ]
    return [NetworkProbe(ISOLATED, available=True), _probe_connection()]


def _probe_connection() -> NetworkProbe:
    """Try the connector with all its protections; drop the protections that fail on this node."""
    cause, detail = _missing()
    for options in () if cause else (PROTECTIONS, PROTECTIONS[:1], ()):
        choice = Choice(OWN_NETWORK, is_connected=True, options=options)
        cause, found = _tried(choice)
        if not cause:
            left = [option for option in PROTECTIONS if option not in options]
            lack = f" without {' and '.join(left)}: {detail}" if left else ""
            text = f"{' '.join((CONNECTOR, *options))}{lack}"[:300]
            return NetworkProbe(CONNECTED, available=True, detail=text, means=list(options))
        detail = found
    return NetworkProbe(CONNECTED, available=False, cause=cause, detail=detail[:300])


def _missing() -> Tuple[str, str]:
    """Return cause and detail of a missing requirement of connections on this node; or empty."""
    path = system.which(CONNECTOR, _places())
    if not path:
        return job_networks.NO_CONNECTOR, f"{CONNECTOR} is not in {':'.join(_places())}"
    version = _version(path)
    found = _LIBSLIRP.search(version)
    if found is None or (int(found[1]), int(found[2])) < LEAST_LIBSLIRP:
        return job_networks.CONNECTOR_TOO_OLD, " ".join(version.split())
    try:
        os.close(os.open(_TUN, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return job_networks.NO_TUN, f"{_TUN}: {error.strerror}"
    return "", ""


def _version(path: str) -> str:
    import subprocess  # noqa: PLC0415 - costs start-up time that only this path needs

    done = subprocess.run(
        [path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.stdout.decode("utf-8", "replace")


def _tried(choice: Choice) -> Tuple[str, str]:
    """Try to connect a sandbox to this network; return cause and detail of a failure, or ""."""
    uid = SHARED_UID if os.getuid() == 0 else None
    try:
        confinement.try_out(uid, lambda pid: connect(pid, choice, uid).wait, blocked_by(choice))
    except SandboxError as error:
        is_connector = error.stage == _CONNECTOR_STAGE
        cause = job_networks.CONNECTOR_FAILED if is_connector else job_networks.NO_SANDBOX
        return cause, f"{error.stage}: {error}"
    finally:
        for one in system.descendants({os.getpid()}):
            system.kill_quietly(one.pid, signal.SIGKILL)
    return "", ""
