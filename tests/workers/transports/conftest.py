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
    """

    node: Any
    is_real: bool
    lines: list[Transport]

    def line(self) -> Transport:
        """One more line to the node, not yet open."""
        line: Transport = (
            SshTransport(self.node.address, bundle(), Patience(connect=20.0, request=20.0))
            if self.is_real
            else self.node.transport()
        )
        self.lines.append(line)
        return line


@cache
def bundle() -> Bundle:
    """The node's part of this installation."""
    return build_bundle()


def put_in_place(home: Path) -> None:
    """What an install does, at the cost of a copy."""
    place = home / ".tessera" / bundle().sha256
    place.mkdir(parents=True, mode=0o700)
    (place / "node.pyz").write_bytes(bundle().data)


ASYNCSSH = pytest.param("asyncssh", id="asyncssh")
OPENSSH = pytest.param("openssh", id="openssh", marks=pytest.mark.openssh)
JUMP = pytest.param("jump", id="jump", marks=pytest.mark.openssh)
REAL = [ASYNCSSH, OPENSSH, JUMP]
SERVERS: dict[str, Callable[[Path], AbstractAsyncContextManager[Any]]] = {
    "asyncssh": ssh_node,
    "openssh": openssh_node,
    "jump": openssh_behind_jump_host,
}


class SimulatedPlace(Place):
    """A simulated node behind an SSH server, which the usual transport reaches."""

    def line(self) -> Transport:
        """One more line to the node, not yet open."""
        patience = Patience(connect=20.0, request=20.0)
        line = SshTransport(self.node.address, bundle(), patience)
        self.lines.append(line)
        return line


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


@pytest.fixture(params=["fake", "simulated", *REAL])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    lines: list[Transport] = []
    if request.param == "fake":
        yield Place(FakeNode(), False, lines)
        return
    if request.param == "simulated":
        async with simulated_node() as node:
            yield SimulatedPlace(node, False, lines)
            for line in lines:
                await line.close()
        return
    async with SERVERS[request.param](tmp_path) as node:
        put_in_place(node.home)
        yield Place(node, True, lines)
        for line in lines:
            await line.close()
