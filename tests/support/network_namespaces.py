"""Network namespaces for tests: a node with services, and an outside network."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

METADATA = "169.254.169.254"
WORLD, NODE = "203.0.113.1", "203.0.113.2"
METADATA6 = "fd00:ec2::254"
WORLD6, NODE6 = "2001:db8::1", "2001:db8::2"

SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
print("ready", flush=True)
while True:
    server.accept()[0].sendall(b"hello\\n")
"""

DATAGRAMS = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    content, peer = server.recvfrom(1000)
    server.sendto(content, peer)
"""


@dataclass(frozen=True)
class Namespace:
    """A network namespace."""

    name: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the command line prefix for processes in the namespace.

        ``ip netns exec`` would hide the control groups.
        """
        return ("nsenter", f"--net=/run/netns/{self.name}")

    def run(self, *command: str) -> str:
        """Run a command in the namespace; return its output."""
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=True)
        return done.stdout


@contextmanager
def namespace() -> Iterator[Namespace]:
    """Create a namespace with only loopback; skip the test if that is not permitted."""
    if os.getuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2 to make network namespaces")
    one = Namespace(f"tessera-{secrets.token_hex(4)}")
    subprocess.run(["ip", "netns", "add", one.name], check=True)
    try:
        one.run("ip", "link", "set", "lo", "up")
        yield one
    finally:
        subprocess.run(["ip", "netns", "del", one.name], check=False)


@contextmanager
def node_in_world() -> Iterator[tuple[Namespace, Namespace]]:
    """Connect a node and an outside network, which has the metadata addresses of clouds."""
    with namespace() as node, namespace() as world:
        outside, inside = "v" + secrets.token_hex(4), "v" + secrets.token_hex(4)
        subprocess.run(
            ["ip", "link", "add", inside, "netns", node.name, "type", "veth", "peer", "name",
             outside, "netns", world.name],
            check=True,
        )  # fmt: skip
        world.run("ip", "addr", "add", f"{WORLD}/24", "dev", outside)
        world.run("ip", "addr", "add", f"{WORLD6}/64", "dev", outside, "nodad")
        for address in (f"{METADATA}/32", "100.100.100.200/32", f"{METADATA6}/128"):
            nodad = ("nodad",) if ":" in address else ()
            world.run("ip", "addr", "add", address, "dev", outside, *nodad)
        world.run("ip", "link", "set", outside, "up")
        node.run("ip", "addr", "add", f"{NODE}/24", "dev", inside)
        node.run("ip", "addr", "add", f"{NODE6}/64", "dev", inside, "nodad")
        node.run("ip", "link", "set", inside, "up")
        node.run("ip", "-6", "route", "add", "default", "via", WORLD6)
        node.run("ip", "route", "add", "default", "via", WORLD)
        yield node, world


@contextmanager
def listener(where: Namespace, address: str, port: int, program: str = SERVER) -> Iterator[str]:
    """Run a service that greets its clients; yield ``address:port``."""
    command = [*where.prefix, sys.executable, "-c", program, address, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield f"{address}:{port}"
        finally:
            server.kill()


def greeting(where: Namespace, address: str, port: int) -> str:
    """Return the greeting of a service to a client in a namespace; empty if it is unreachable."""
    client = (
        "import socket, sys\n"
        "try:\n"
        "    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)\n"
        "    print(s.recv(100).decode(), end='')\n"
        "except OSError:\n"
        "    pass\n"
    )
    return where.run(sys.executable, "-c", client, address, str(port))
