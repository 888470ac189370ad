"""Addresses of the demo's nodes, chosen once and reserved across restarts of their process.

Node rows of the portal store the address. If another program took the port during a restart, the
portal could not reach the node any more.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FIRST_PORT: Final = 2322
PORTS: Final = 400
BACKLOG: Final = 100
LISTING: Final = "nodes.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    """A planned node: its name, device type, and preferred loopback address."""

    name: str
    device_type: str
    address: str


NODES: Final = (
    DemoNode(name="demo-1", device_type="cpu-a", address="127.0.0.11"),
    DemoNode(name="demo-2", device_type="cpu-a", address="127.0.0.12"),
    DemoNode(name="demo-3", device_type="cpu-b", address="127.0.0.13"),
)


class NoPlaceError(Exception):
    """No port is free for a node; the message contains its name."""


def take_places(folder: Path) -> dict[str, socket.socket]:
    """Open a listening socket for each node, at its earlier port if that is free.

    Args:
        folder: directory of the earlier listing, if any.

    Raises:
        NoPlaceError: no port is free.
    """
    known = _known_ports(folder)
    return {node.name: _take(node, known.get(node.name)) for node in NODES}


def _take(node: DemoNode, known_port: int | None) -> socket.socket:
    host = node.address if _can_bind(node.address) else "127.0.0.1"
    for port in _wishes(known_port):
        place = socket.socket()
        try:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((host, port))
            place.listen(BACKLOG)
        except OSError:
            place.close()
        else:
            return place
    raise NoPlaceError(f"no free port for {node.name} from {FIRST_PORT} on {host}")


def _wishes(known_port: int | None) -> Iterator[int]:
    if known_port is not None:
        yield known_port
    yield from range(FIRST_PORT, FIRST_PORT + PORTS)


def _known_ports(folder: Path) -> dict[str, int]:
    """Return the earlier ports of the nodes, to which node rows refer."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        listing = json.loads((folder / LISTING).read_text())
        return {entry["name"]: int(entry["port"]) for entry in listing}
    return {}


def _can_bind(address: str) -> bool:
    """Return whether an address can be bound; some systems have only 127.0.0.1 in 127.0.0.0/8."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
