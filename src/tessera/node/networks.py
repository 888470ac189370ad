"""The own network of a plain job: a namespace with loopback, rules, and perhaps a way out.

The way out is ``slirp4netns``, which forwards connections as the runner's user and needs no root.
Packet filter rules in the namespace keep the node itself and metadata services out of reach; on a
node that cannot load them no way out is used.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
from typing import Dict, List, NamedTuple

from tessera.isolation import OWN_NETWORK, SHARED_NETWORK
from tessera.node import background, confinement, firewall, kernel, system
from tessera.node.boxes import SandboxError
from tessera.protocol import ProtocolError, RunSpec

CONNECTOR = "slirp4netns"
RESOLVER = "10.0.2.3"
_ATTACHED = "10.0.2.0/24"
_DEVICE = "tap0"
START_SECONDS = 10.0
_known: Dict[str, bool] = {}


class Choice(NamedTuple):
    """The network of a run.

    Attributes:
        network: ``own`` or ``shared``.
        is_connected: an own network that reaches what is outside of the node.
    """

    network: str
    is_connected: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the run has a network namespace of its own."""
        return self.network == OWN_NETWORK


NODE_NETWORK = Choice(SHARED_NETWORK)
_CONNECTED = Choice(OWN_NETWORK, is_connected=True)


def choose(root: str, spec: RunSpec) -> Choice:
    """The network that a run in a sandbox gets on this node.

    Declared ports are reached at the node's address, so a run that has some shares its network.
    """
    try:
        setting = confinement.declaration(root).job_network
    except ProtocolError:
        setting = confinement.ISOLATED_NETWORK
    if spec.network != OWN_NETWORK or spec.ports or setting == confinement.SHARE_NETWORK:
        return Choice(SHARED_NETWORK)
    if can_connect():
        return _CONNECTED
    own = setting == confinement.ISOLATED_NETWORK
    return Choice(OWN_NETWORK if own else SHARED_NETWORK)


def can_connect() -> bool:
    """Whether an own network can have a way out: tried once in the life of a process."""
    if not firewall.tool() or shutil.which(CONNECTOR, path=_search()) is None:
        return False
    if CONNECTOR not in _known:
        _known[CONNECTOR] = _try_out()
    return _known[CONNECTOR]


def connect(pid: int, choice: Choice) -> None:
    """Give the namespace of a sandbox's first process its rules and its way out.

    Raises:
        SandboxError: that is not possible.
    """
    if not choice.is_connected:
        return
    rules = firewall.rules_for((), (_ATTACHED,))
    rules = rules._replace(resolvers=(*rules.resolvers, RESOLVER))
    _run_inside(pid, firewall.script(rules, firewall.tool()))
    _start_connector(pid)


def resolver_of(choice: Choice) -> str:
    """The content of ``/etc/resolv.conf`` in the namespace; empty: that of the node."""
    return f"nameserver {RESOLVER}\n" if choice.is_connected else ""


def _search() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), *firewall.SEARCH))


def _run_inside(pid: int, script: str) -> None:
    """Run a shell script in the namespaces of a process, as root of them."""
    said, saying = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(saying, 1)
            os.dup2(saying, 2)
            kernel.enter_network(pid)
            os.execv("/bin/sh", ["/bin/sh", "-c", script])  # noqa: S606
        finally:
            os._exit(127)
    os.close(saying)
    output = system.read_all(said, 4096).decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if status:
        raise SandboxError("network", 0, f"the rules cannot be loaded: {output.strip()[:300]}")


def _start_connector(pid: int) -> None:
    """Start the connector as a child of this process; it ends with this process or the job."""
    ready, tell_ready = os.pipe()
    child = os.fork()
    if child == 0:
        _become_connector(pid, tell_ready)
    os.close(tell_ready)
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    poll.poll(START_SECONDS * 1000)
    os.set_blocking(ready, False)
    try:
        is_ready = os.read(ready, 1) == b"1"
    except BlockingIOError:
        is_ready = False
    os.close(ready)
    if not is_ready:
        system.kill_quietly(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise SandboxError("network", 0, f"{CONNECTOR} does not connect the namespace")


def _become_connector(pid: int, ready: int) -> None:
    """In the child: execute the connector. Never returns."""
    try:
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        system.default_signals()
        system.redirect_standard_streams()
        system.close_others({ready})
        os.set_inheritable(ready, True)
        os.execv(shutil.which(CONNECTOR, path=_search()) or "", _command(pid, ready))  # noqa: S606
    finally:
        os._exit(127)


def _command(pid: int, ready: int) -> List[str]:
    command = [CONNECTOR, "--configure", "--mtu=65520", "--disable-host-loopback"]
    command += [f"--ready-fd={ready}", "--netns-type=path"]
    if os.getuid() != 0:
        command.append(f"--userns-path=/proc/{pid}/ns/user")
    return [*command, f"/proc/{pid}/ns/net", _DEVICE]


def _try_out() -> bool:
    """Connect the namespace of a sandbox with nothing in it, in a child of its own."""
    done = background.fork_work(lambda: {"connected": _tried()}, lambda: None)
    outcome = background.read_outcome(system.read_all(done.descriptor, 1 << 16))
    os.waitpid(done.pid, 0)
    return outcome.get("connected") is True


def _tried() -> bool:
    uid = confinement.SHARED_UID if os.getuid() == 0 else None
    try:
        confinement.try_out(uid, lambda pid: connect(pid, _CONNECTED))
    except SandboxError:
        return False
    finally:
        for one in system.descendants({os.getpid()}):
            system.kill_quietly(one.pid, signal.SIGKILL)
    return True
