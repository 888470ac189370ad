"""The demo's nodes: three SSH servers on loopback, each with a home and declared devices.

They run in a process of their own (``python -m demo.nodes``). As on any node, the runner detaches
jobs: they outlive this process, and the next process finds them again.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncssh

from demo.places import LISTING, NODES, DemoNode, NoPlaceError, take_places
from portal.supervisor.files import write_private
from tessera import isolation, job_networks
from tessera.node import confinement
from tessera.node.sandbox_root import SYSTEM
from tessera.protocol import DEVICES_FILE

USER: Final = "tessera"
CPUS_PER_DEVICE: Final = 4
MEMORY_PER_DEVICE: Final = 8 << 30
TREE: Final = ("node", "socket", "pcie", "device")
PATHS: Final = ((0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1))
END_SECONDS: Final = 2.0
PIECE: Final = 64 * 1024


@dataclass(slots=True)
class RunningNode:
    """A running node.

    Attributes:
        home: the home directory of every command.
        commands: process groups of the running commands.
    """

    node: DemoNode
    home: Path
    host_key: asyncssh.SSHKey
    commands: set[int] = field(default_factory=set)
    acceptor: asyncssh.SSHAcceptor | None = None

    @property
    def authorized_keys(self) -> Path:
        """Return the file of the keys that may sign in."""
        return self.home / ".ssh" / "authorized_keys"

    def describe(self, host: str, port: int) -> dict[str, Any]:
        """Return name, address and host key, which are needed to add this node."""
        line = self.host_key.export_public_key("openssh").decode().split()
        return {
            "name": self.node.name,
            "host": host,
            "port": port,
            "user": USER,
            "host_key": " ".join(line[:2]),
            "host_key_fingerprint": self.host_key.get_fingerprint("sha256"),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the nodes until TERM or INT."""
    parser = argparse.ArgumentParser(prog="python -m demo.nodes")
    parser.add_argument("folder", type=Path, help="directory for homes, host keys and the listing")
    parser.add_argument("--authorized-key", type=Path, required=True, help="public key file")
    parser.add_argument(
        "--place",
        action="append",
        default=[],
        help="NAME=FD: an inherited listening socket",
    )
    parser.add_argument("--isolation", default="", choices=("", *isolation.PLAIN_LEVELS))
    parser.add_argument(
        "--hidden", action="append", default=[], help="directory that jobs cannot see"
    )
    options = parser.parse_args(arguments)
    try:
        places = _held(options.place) or take_places(options.folder)
    except NoPlaceError as error:
        parser.exit(1, f"{error}\n")
    nodes = [
        prepare_node(
            options.folder, node, strongest=options.isolation, hidden=tuple(options.hidden)
        )
        for node in NODES
    ]
    level = probe_isolation(nodes[0])
    asyncio.run(_serve(options.folder, options.authorized_key, places, nodes, level))
    return 0


def _held(places: Sequence[str]) -> dict[str, socket.socket]:
    split = (place.partition("=") for place in places)
    return {name: socket.socket(fileno=int(handle)) for name, _, handle in split}


async def _serve(
    folder: Path,
    authorized_key: Path,
    places: Mapping[str, socket.socket],
    nodes: Sequence[RunningNode],
    level: Mapping[str, Any],
) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    listing = []
    for running in nodes:
        authorize(running, authorized_key.read_text())
        host, port = await _listen(running, places[running.node.name])
        listing.append({**running.describe(host, port), "isolation": level})
    # Written once all servers listen, so that every reader can connect.
    write_private(folder / LISTING, json.dumps(listing, indent=2) + "\n")
    print(
        f"serving {len(nodes)} nodes: {', '.join(_where(entry) for entry in listing)}", flush=True
    )
    await ended.wait()
    await _end(nodes)


def prepare_node(
    folder: Path, node: DemoNode, *, strongest: str = "", hidden: Sequence[str] = ()
) -> RunningNode:
    """Create home, host key and device declaration of a node if missing.

    Args:
        folder: directory of all nodes.
        node: the node.
        strongest: strongest isolation level of its jobs; if empty, the earlier one applies.
        hidden: directories that its jobs do not see.
    """
    place = folder / node.name
    home = place / "home"
    (home / ".tessera").mkdir(parents=True, exist_ok=True, mode=0o700)
    key = place / "host_key"
    if not key.exists():
        made = asyncssh.generate_private_key("ssh-ed25519", comment=node.name)
        write_private(key, made.export_private_key("openssh").decode())
    declaration = home / ".tessera" / DEVICES_FILE
    if not declaration.exists():
        write_private(declaration, json.dumps(declared_devices(node), indent=2) + "\n")
    declare_isolation(home / ".tessera" / confinement.DECLARATION_FILE, strongest, hidden)
    return RunningNode(node=node, home=home, host_key=asyncssh.read_private_key(str(key)))


def declare_isolation(path: Path, strongest: str, hidden: Sequence[str]) -> None:
    """Add this Python's directories to the visible paths in a node's declaration.

    The data directory of the portal stays hidden, also below a system directory. Jobs of one
    instance get their own network, so they cannot reach the portal's services on loopback.
    """
    declared = json.loads(path.read_text()) if path.exists() else {}
    own = interpreter_paths()
    mine = {shown["path"] for shown in own}
    others = [shown for shown in declared.get("visible_paths", []) if shown["path"] not in mine]
    level = strongest or declared.get("strongest", isolation.USER)
    network = declared.get("job_network", job_networks.ISOLATED)
    found = {
        **declared,
        "strongest": level,
        "visible_paths": [*own, *others],
        "hidden_paths": sorted({*hidden, *declared.get("hidden_paths", [])}),
        "job_network": network,
    }
    write_private(path, json.dumps(found, indent=2) + "\n")


def interpreter_paths() -> list[dict[str, Any]]:
    """Return the directories of this Python and its packages, for demo jobs in Python."""
    places = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    of_the_system = tuple(Path(place) for place in SYSTEM)
    return [
        {"path": place, "writable": False}
        for place in sorted(places)
        if not any(Path(place).is_relative_to(other) for other in of_the_system)
    ]


def probe_isolation(running: RunningNode) -> dict[str, Any]:
    """Return the isolation level of demo jobs, and the reason against a stronger level."""
    probes = confinement.known(str(running.home / ".tessera"))
    level = isolation.best_available(probes, of=isolation.PLAIN_LEVELS)
    found = {"level": level, "is_root": os.getuid() == 0, "cause": "", "detail": ""}
    missing = next((probe for probe in probes if probe.level == isolation.NAMESPACE), None)
    if missing is not None and not missing.available:
        found |= {"cause": missing.cause, "detail": missing.detail}
    return found


def declared_devices(node: DemoNode) -> dict[str, Any]:
    """Return the declaration of devices for a node without GPUs, in the format of the probe."""
    return {
        "levels": list(TREE),
        "cpus": CPUS_PER_DEVICE * len(PATHS),
        "memory_bytes": MEMORY_PER_DEVICE * len(PATHS),
        "devices": [
            {"type": node.device_type, "path": list(path), "memory_bytes": MEMORY_PER_DEVICE}
            for path in PATHS
        ],
    }


def authorize(running: RunningNode, public_key: str) -> None:
    """Add the control plane's key to the authorized keys of a node, like an admin of a node."""
    path = running.authorized_keys
    path.parent.mkdir(exist_ok=True, mode=0o700)
    known = path.read_text() if path.exists() else ""
    if public_key.split()[1] not in known.split():
        write_private(path, f"{known}{public_key.strip()}\n")


async def _listen(running: RunningNode, place: socket.socket) -> tuple[str, int]:
    """Start an SSH server on a socket; return its host and port."""
    host, port = place.getsockname()[:2]
    running.acceptor = await asyncssh.listen(
        sock=place,
        server_factory=lambda: _Server(running.authorized_keys),
        server_host_keys=[running.host_key],
        process_factory=lambda process: _run(process, running),
        sftp_factory=lambda channel: HomeSftp(channel, running.home),
        encoding=None,
        line_editor=False,
        agent_forwarding=False,
        config=None,
        login_timeout=20,
    )
    return host, port


class _Server(asyncssh.SSHServer):
    """Accepts one user by key; forwards connections only to a container engine's socket."""

    def __init__(self, authorized_keys: Path) -> None:
        self._authorized_keys = authorized_keys
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        """Read the keys at each sign-in, since a rotation changes them."""
        if self._connection is not None:
            self._connection.set_authorized_keys(str(self._authorized_keys))
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return dest_path in {"/var/run/docker.sock", "/run/docker.sock"}


class HomeSftp(asyncssh.SFTPServer):
    """SFTP server that is confined to the node's home."""

    def __init__(self, channel: Any, home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home.resolve())

    def map_path(self, path: bytes) -> bytes:
        """Return the path on this machine; refuse paths outside the home, also by a link."""
        mapped = os.path.normpath(os.path.join(self._home, path))  # noqa: PTH118 bytes paths
        if mapped == os.path.dirname(self._home):  # noqa: PTH120 bytes paths
            # Listings contain `..`, which at the root of a file system is the root itself.
            return self._home
        real = os.path.realpath(mapped)
        if os.path.commonpath([self._home, real]) != self._home:
            raise asyncssh.SFTPPermissionDenied("outside the home directory")
        return mapped


async def _run(process: asyncssh.SSHServerProcess[bytes], running: RunningNode) -> None:
    """Run one command like sshd: in the home, with its own session and a clean environment."""
    command = ["/bin/sh", "-c", process.command] if process.command else ["/bin/sh"]
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=running.home,
        env=_environment(running.home),
        start_new_session=True,
    )
    running.commands.add(child.pid)
    feeding = asyncio.create_task(_feed(process, child.stdin))
    try:
        await asyncio.gather(
            _copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr)
        )
        _say_end(process, await child.wait())
    finally:
        feeding.cancel()
        running.commands.discard(child.pid)


async def _feed(
    process: asyncssh.SSHServerProcess[bytes], target: asyncio.StreamWriter | None
) -> None:
    """Forward the client's input to a command; the end of the connection ends the input."""
    if target is None:
        return
    try:
        while piece := await process.stdin.read(PIECE):
            target.write(piece)
            await target.drain()
    except (OSError, asyncssh.Error):
        pass
    finally:
        target.close()


async def _copy(source: asyncio.StreamReader | None, target: asyncssh.SSHWriter[bytes]) -> None:
    """Forward a command's output to the client; after a disconnect it is read and dropped."""
    is_heard = True
    while source is not None and (piece := await source.read(PIECE)):
        if is_heard:
            try:
                target.write(piece)
                await target.drain()
            except (OSError, asyncssh.Error):
                is_heard = False


def _say_end(process: asyncssh.SSHServerProcess[bytes], status: int) -> None:
    # A broken connection cannot receive an end of file.
    with suppress(OSError, asyncssh.Error):
        if status < 0:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            process.exit(status)


def _environment(home: Path) -> dict[str, str]:
    """Return an environment without variables of this process, which may contain secrets."""
    own = Path(sys.executable).parent
    return {
        "HOME": str(home),
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "PATH": f"{own}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


async def _end(nodes: Sequence[RunningNode]) -> None:
    """Stop the servers, and end the processes of connections; detached runs continue."""
    for running in nodes:
        if running.acceptor is not None:
            running.acceptor.close()
    for number in (signal.SIGHUP, signal.SIGKILL):
        for group in [group for running in nodes for group in running.commands]:
            with suppress(ProcessLookupError):
                os.killpg(group, number)
        deadline = asyncio.get_running_loop().time() + END_SECONDS
        while any(running.commands for running in nodes):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)


def _where(entry: dict[str, Any]) -> str:
    return f"{entry['name']} {entry['host']}:{entry['port']}"


if __name__ == "__main__":
    sys.exit(main())
