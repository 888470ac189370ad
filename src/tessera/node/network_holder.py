"""A network namespace of this account for a sandbox of the helper.

The account owns it by a user namespace, so it can connect it to the outside and publish ports as
it does for its own sandboxes. The job has no rights in it.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple, NoReturn, Sequence

from tessera.node import kernel, sandbox, system
from tessera.node.boxes import REAP_SECONDS, SandboxError

_READY = b"1"


class Holder(NamedTuple):
    """A process with a network namespace, and a descriptor of that."""

    pid: int
    network: int

    def close(self) -> None:
        """End the process; the namespace lasts while it is in use."""
        os.close(self.network)
        _end(self.pid)


def _end(pid: int) -> None:
    system.kill_quietly(pid, signal.SIGKILL)
    system.reap(pid, REAP_SECONDS)


def hold(blocked: Sequence[str]) -> Holder:
    """Create a network namespace with loopback.

    Args:
        blocked: unreachable IPv4 networks.

    Raises:
        SandboxError: the kernel refuses.
    """
    said, saying = os.pipe()
    pid = os.fork()
    if pid == 0:
        _hold(blocked, saying)
    os.close(saying)
    answer = os.read(said, 1000)
    os.close(said)
    if answer != _READY:
        _end(pid)
        raise SandboxError("network", 0, answer.decode("utf-8", "replace"))
    try:
        *others, network = kernel.open_network(pid)
    except OSError as error:
        _end(pid)
        raise SandboxError("network", error.errno or 0, f"{error}") from None
    for descriptor in others:
        os.close(descriptor)
    return Holder(pid, network)


def _hold(blocked: Sequence[str], saying: int) -> NoReturn:
    try:
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        system.default_signals()
        kernel.close_others({saying})
        uid, gid = os.getuid(), os.getgid()
        kernel.set_process(kernel.PR_SET_DUMPABLE, 1)
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
        kernel.map_identity(0, uid, 0, gid)
        kernel.raise_loopback(sandbox.INNER_ADDRESS)
        kernel.prohibit_routes(blocked)
        os.write(saying, _READY)
        while True:
            signal.pause()
    except OSError as error:
        os.write(saying, f"{error}".encode("utf-8", "replace")[:900])
    finally:
        os._exit(1)
