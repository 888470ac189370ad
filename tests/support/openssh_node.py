"""A node on loopback served by OpenSSH."""

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncssh
import pytest

from workers.transports.jump import JumpHost
from workers.transports.ssh import SshAddress

CONFIG = """
ListenAddress 127.0.0.1:{port}
HostKey {place}/host_key
PidFile {place}/sshd.pid
AuthorizedKeysFile {home}/.ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
MaxStartups 100:30:200
Subsystem sftp internal-sftp
ForceCommand env -i HOME="{home}" USER=tessera PATH="$PATH" /bin/sh -c "$SSH_ORIGINAL_COMMAND"
"""


@dataclass
class OpensshNode:
    """A running sshd whose commands have a separate home directory."""

    home: Path
    address: SshAddress
    pid: int
    commands: list[str] = field(default_factory=list)

    def count_connections(self) -> int:
        """Return the number of open connections."""
        return len(self._children())

    def drop_connections(self) -> None:
        """Break all connections, like a network failure."""
        for child in self._children():
            os.kill(child, 9)

    def _children(self) -> list[int]:
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(child) for child in listed]


def as_jump_host(node: OpensshNode) -> JumpHost:
    """Return a running sshd as the jump host of other nodes."""
    address = node.address
    return JumpHost(
        host=address.host, port=address.port, user=address.user, host_key=address.host_key
    )


@asynccontextmanager
async def openssh_behind_jump_host(place: Path) -> AsyncIterator[OpensshNode]:
    """Serve a node that is reached through a second sshd."""
    for name in ("jump", "node"):
        (place / name).mkdir()
    async with (
        openssh_node(place / "jump") as jump,
        openssh_node(place / "node", place / "jump" / "client_key") as node,
    ):
        node.address = replace(node.address, jump=as_jump_host(jump))
        yield node


@asynccontextmanager
async def openssh_node(
    place: Path, client_key_path: Path | None = None
) -> AsyncIterator[OpensshNode]:
    """Serve inside the block; skip the test if sshd is missing or cannot be started.

    Args:
        place: directory of the keys and the home directory.
        client_key_path: the accepted key; created in ``place`` if missing.
    """
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None:
        pytest.skip("needs openssh-server")
    home = place / "home"
    (home / ".ssh").mkdir(parents=True)
    host_key = _key(place / "host_key")
    if client_key_path is None:
        client_key_path = place / "client_key"
        client_key = _key(client_key_path)
    else:
        client_key = asyncssh.read_private_key(str(client_key_path))
    client_key.write_public_key(str(home / ".ssh/authorized_keys"))
    port = _free_port()
    (place / "sshd_config").write_text(CONFIG.format(port=port, place=place, home=home))
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen(
        [sshd, "-D", "-f", str(place / "sshd_config"), "-E", str(place / "sshd.log")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await _until_open(port)
        address = SshAddress(
            host="127.0.0.1",
            port=port,
            user=pwd.getpwuid(os.getuid()).pw_name,
            host_key=host_key.export_public_key("openssh").decode().strip(),
            client_keys=(client_key_path.read_bytes(),),
        )
        yield OpensshNode(home, address, daemon.pid)
    finally:
        daemon.terminate()
        daemon.wait(60)


async def _until_open(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _key(path: Path) -> asyncssh.SSHKey:
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(path))
    path.chmod(0o600)
    return key
