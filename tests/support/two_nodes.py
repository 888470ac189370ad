"""Two nodes on one machine: connected network namespaces, or loopback addresses."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Node:
    """Network of the processes of a node.

    Attributes:
        address: address for other nodes.
        namespace: file of its network namespace; empty for that of the machine.
        interface: network interface to other nodes; empty for any.
    """

    address: str
    namespace: str = ""
    interface: str = ""

    def enter(self) -> None:
        """Move this process to the node; it must not have other threads."""
        if self.namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = os.open(self.namespace, os.O_RDONLY)
            if libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            os.close(descriptor)
        if self.interface:
            os.environ["GLOO_SOCKET_IFNAME"] = self.interface


HERE = Node("127.0.0.1")


@contextmanager
def two_nodes() -> Iterator[list[Node]]:
    """Run two connected nodes; on loopback if namespaces are not permitted."""
    names = [f"tsr{os.getpid()}{letter}" for letter in "ab"]
    try:
        yield _namespaces(names) or [HERE, Node("127.0.0.2")]
    finally:
        for name in names:
            if Path("/run/netns", name).exists():
                _ip("netns", "del", name)


def _namespaces(names: list[str]) -> list[Node]:
    """Create two connected namespaces; none if that is not permitted."""
    cables = [f"{name}0" for name in names]
    made = all(_ip("netns", "add", name) for name in names)
    made = made and _ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
    for number, (name, cable) in enumerate(zip(names, cables, strict=True), start=1):
        made = (
            made
            and _ip("link", "set", cable, "netns", name, "name", "eth0")
            and _ip("-n", name, "addr", "add", f"10.213.0.{number}/24", "dev", "eth0")
            and _ip("-n", name, "link", "set", "eth0", "up")
            and _ip("-n", name, "link", "set", "lo", "up")
        )
    if not made:
        return []
    return [
        Node(f"10.213.0.{number}", f"/run/netns/{name}", "eth0")
        for number, name in enumerate(names, start=1)
    ]


def _ip(*arguments: str) -> bool:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, check=False, timeout=20)
    except OSError:
        return False
    return done.returncode == 0
