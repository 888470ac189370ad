"""The nodes on which the contract of all transports is tried."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tessera.bundle import Bundle, build_bundle
from tests.support.fake_transport import FakeNode
from tests.support.openssh_node import openssh_behind_jump_host, openssh_node
from tests.support.simulated_nodes import NodeFarm, node_farm
from tests.support.ssh_node import ssh_node
from workers.transports.base import Transport
from workers.transports.ssh import Patience, SshAddress, SshTransport


@dataclass
class Place:
    """A kind of node, with as many lines to it as a test wants.

    Attributes:
        is_real: commands are real processes.
        connect: creates a line to the node.
    """

    node: Any
    is_real: bool
    lines: list[Transport]
    connect: Callable[[Any], Transport] = lambda node: node.transport()

    def line(self) -> Transport:
        """One more line to the node, not yet open."""
        line = self.connect(self.node)
        self.lines.append(line)
        return line


def over_ssh(node: Any) -> SshTransport:
    """A session over SSH, not yet open."""
    return SshTransport(node.address, bundle(), Patience(connect=20.0, request=20.0))


@cache
def bundle() -> Bundle:
    """The node's part of this installation."""
    return build_bundle()


def put_in_place(home: Path) -> None:
    """What an install does, at the cost of a copy."""
    place = home / ".tessera" / bundle().sha256
    place.mkdir(parents=True, mode=0o700)
    (place / "node.pyz").write_bytes(bundle().data)


@dataclass(frozen=True)
class RealNode:
    """A real node, and a transport to it.

    Attributes:
        serve: serves the node inside a block, in a directory.
        connect: creates a line to the node.
        marks: marks of tests that need more software.
    """

    serve: Callable[[Path], AbstractAsyncContextManager[Any]]
    connect: Callable[[Any], Transport] = over_ssh
    marks: tuple[pytest.MarkDecorator, ...] = ()


REAL_NODES = {
    "asyncssh": RealNode(ssh_node),
    "openssh": RealNode(openssh_node, marks=(pytest.mark.openssh,)),
    "jump": RealNode(openssh_behind_jump_host, marks=(pytest.mark.openssh,)),
}
"""A new transport adds one entry; all tests of the contract then run with it."""
EVERY_REAL = [pytest.param(name, id=name, marks=node.marks) for name, node in REAL_NODES.items()]
REAL = [param for param in EVERY_REAL if REAL_NODES[str(param.id)].connect is over_ssh]
"""Servers that the transport over SSH reaches."""


@dataclass
class SimulatedNode:
    """The only node of a farm, as the contract uses it."""

    farm: NodeFarm
    address: SshAddress

    def drop_connections(self) -> None:
        """Break all connections."""
        for connection in list(self.farm.connections):
            connection.abort()


@asynccontextmanager
async def simulated_node() -> AsyncIterator[SimulatedNode]:
    """Serve one simulated node inside the block."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = key.export_public_key("openssh").decode()
    async with node_farm(1, public) as farm:
        private = key.export_private_key("openssh")
        yield SimulatedNode(farm, farm.address(0, private))


@pytest.fixture(params=["fake", "simulated", *EVERY_REAL])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    lines: list[Transport] = []
    if request.param == "fake":
        yield Place(FakeNode(), False, lines)
        return
    if request.param == "simulated":
        async with simulated_node() as node:
            yield Place(node, False, lines, over_ssh)
            for line in lines:
                await line.close()
        return
    real = REAL_NODES[request.param]
    async with real.serve(tmp_path) as node:
        put_in_place(node.home)
        yield Place(node, True, lines, real.connect)
        for line in lines:
            await line.close()
