"""The demo as a companion of the supervisor: its nodes as a program, and its content."""

import json
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from demo.places import LISTING, NoPlaceError, take_places
from portal.supervisor.children import last_lines
from portal.supervisor.files import DataDir
from portal.supervisor.processes import ProcessTable
from portal.supervisor.silence import Probe
from portal.supervisor.startup import CONTENT_SECONDS
from portal.supervisor.supervisor import StartupError, Supervisor
from tessera.isolation import NONE, remedy

PROGRAM: Final = "demo-nodes"


class Demo:
    # The example jobs run without a container engine.
    variables: Mapping[str, str] = {"TESSERA_IMAGES": "ignore"}

    def __init__(self, data: DataDir, *, isolation: str = "", history: bool = True) -> None:
        """Set paths and the isolation level.

        Args:
            data: data directory of the portal.
            isolation: strongest isolation level of demo jobs. If empty, the level of the last
                start applies, or the strongest available level at the first start.
            history: whether the first start creates a history.
        """
        self._data = data
        self.content = "demo.content.seed" if history else "demo.content.seed_without_history"
        self._isolation = isolation
        self._folder = data.root / "demo"
        self.source = self._folder / LISTING

    def start(self, supervisor: Supervisor, table: ProcessTable) -> None:
        """Start the SSH servers of the nodes.

        Raises:
            StartupError: no port is free for a node.
        """
        self._folder.mkdir(exist_ok=True, mode=0o700)
        try:
            places = take_places(self._folder)
        except NoPlaceError as error:
            raise StartupError(str(error)) from error
        # They stay open until this process ends, so that other programs cannot bind the ports.
        handles = {name: place.detach() for name, place in places.items()}
        arguments = ["-m", "demo.nodes", str(self._folder)]
        arguments += ["--authorized-key", str(self._data.client_public_key)]
        arguments += [f"--isolation={self._isolation}", f"--hidden={self._data.root}"]
        arguments += [f"--place={name}={handle}" for name, handle in handles.items()]
        supervisor.add(table.nodes(PROGRAM, arguments, tuple(handles.values())))

    def wait(self, supervisor: Supervisor) -> None:
        """Wait until an SSH server of the nodes responds.

        Raises:
            StartupError: no process responds in time.
        """
        child = supervisor.children[PROGRAM]
        if not supervisor.wait_until(partial(nodes_respond, self.source), CONTENT_SECONDS):
            raise StartupError("the demo nodes do not accept connections", last_lines(child.log))

    def probes(self) -> Mapping[str, Probe]:
        """Return the health check of the process of the nodes."""
        return {PROGRAM: partial(nodes_respond, self.source)}

    def lines(self) -> list[str]:
        """Return lines for the console about the isolation of demo jobs."""
        try:
            found = json.loads(self.source.read_text())[0]["isolation"]
        except (OSError, ValueError, LookupError):
            return []
        if found["level"] == NONE:
            why = f"{found['cause']}: {found['detail']}. " if found["cause"] else ""
            return [
                "  WARNING: jobs of the demo are not isolated: they can read the portal's data.",
                f"    {why}{remedy(found['cause'])}".rstrip(),
            ]
        if found["is_root"]:
            return [
                f"  Isolation of the demo's jobs: {found['level']}. The portal runs as root; jobs "
                "run",
                "    as other Unix users, in own namespaces, and do not see the portal's data.",
            ]
        return [
            f"  Isolation of the demo's jobs: {found['level']}. They do not see the portal's "
            "data.",
        ]


def nodes_respond(listing: Path) -> bool:
    """Return whether at least one node sends an SSH greeting.

    A stopped process still accepts connections, so the greeting is checked. One unreachable node
    must not cause a restart, which would end the sessions of all nodes.
    """
    try:
        nodes = json.loads(listing.read_text())
        return any(_greets(str(node["host"]), int(node["port"])) for node in nodes)
    except (OSError, ValueError, KeyError):
        return False


def _greets(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1) as line:
            return line.recv(16).startswith(b"SSH-")
    except OSError:
        return False
