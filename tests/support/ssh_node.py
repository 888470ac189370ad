"""A node on loopback for tests: a real SSH server whose commands are real processes."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from workers.transports.ssh import SshAddress


@dataclass
class Channels:
    """The open channels with commands, and the maximum number of concurrent ones.

    Attributes:
        pids: process IDs of the running commands.
    """

    most: int = 0
    pids: set[int] = field(default_factory=set)

    def opened(self, pid: int) -> None:
        """Count an opened channel."""
        self.pids.add(pid)
        self.most = max(self.most, len(self.pids))


@dataclass
class SshNode:
    """A running SSH server with a separate home directory."""

    home: Path
    address: SshAddress
    server: asyncssh.SSHAcceptor
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    channels: Channels = field(default_factory=Channels)

    def count_connections(self) -> int:
        """Return the number of opened connections."""
        return len(self.connections)

    def drop_connections(self) -> None:
        """Break all connections, like a network failure."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()


@asynccontextmanager
async def ssh_node(
    tmp_path: Path, *, client_key_path: Path | None = None, prefix: Sequence[str] = ()
) -> AsyncIterator[SshNode]:
    """Serve SSH on loopback inside the block; processes continue, as on a real machine.

    Args:
        tmp_path: directory of the keys and the home directory.
        client_key_path: the accepted key; created if missing.
        prefix: command line prefix for each command, to run it elsewhere.
    """
    home = tmp_path / "home"
    home.mkdir(parents=True, exist_ok=True)
    host_key = _key(tmp_path / "host_key")
    client_key_path = client_key_path or tmp_path / "client_key"
    client_key = _key(client_key_path)
    authorized = home / ".ssh" / "authorized_keys"
    authorized.parent.mkdir(exist_ok=True, mode=0o700)
    client_key.write_public_key(str(authorized))
    commands: list[str] = []
    channels = Channels()
    connections: list[asyncssh.SSHServerConnection] = []

    async def run(process: asyncssh.SSHServerProcess[bytes]) -> None:
        commands.append(process.command or "")
        await _run_command(process, home, channels, prefix)

    class Server(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            connections.append(conn)
            self._connection = conn

        def begin_auth(self, username: str) -> bool:
            self._connection.set_authorized_keys(str(authorized))
            return True

        def unix_connection_requested(self, dest_path: str) -> bool:
            return True

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=Server,
        server_host_keys=[str(tmp_path / "host_key")],
        process_factory=run,
        encoding=None,
    )
    address = SshAddress(
        host="127.0.0.1",
        port=server.get_port(),
        user="tessera",
        host_key=host_key.export_public_key("openssh").decode().strip(),
        client_keys=(client_key_path.read_bytes(),),
    )
    try:
        yield SshNode(home, address, server, connections, commands, channels)
    finally:
        server.close()
        for connection in connections:
            connection.abort()
        await server.wait_closed()


async def _run_command(
    process: asyncssh.SSHServerProcess[bytes],
    home: Path,
    channels: Channels,
    prefix: Sequence[str],
) -> None:
    child = await asyncio.create_subprocess_exec(
        *prefix,
        "/bin/sh",
        "-c",
        process.command or "",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=home,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "USER": "tessera"},
        start_new_session=True,
    )
    channels.opened(child.pid)
    feeding = asyncio.create_task(_feed(process, child))
    try:
        await asyncio.gather(
            _copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr)
        )
        process.exit(await child.wait())
    finally:
        channels.pids.discard(child.pid)
        feeding.cancel()
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def _feed(
    process: "asyncssh.SSHServerProcess[bytes]", child: asyncio.subprocess.Process
) -> None:
    """Forward the client's input to the command, including its end."""
    assert child.stdin is not None
    with suppress(OSError, asyncssh.Error):
        while piece := await process.stdin.read(1 << 16):
            child.stdin.write(piece)
            await child.stdin.drain()
    child.stdin.close()


async def _copy(source: asyncio.StreamReader | None, target: "asyncssh.SSHWriter[bytes]") -> None:
    assert source is not None
    with suppress(OSError, asyncssh.Error):
        while piece := await source.read(1 << 16):
            target.write(piece)
            await target.drain()


def _key(path: Path) -> asyncssh.SSHKey:
    if not path.exists():
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(path))
        path.chmod(0o600)
    return asyncssh.read_private_key(str(path))
