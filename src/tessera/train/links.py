"""Times of messages between the devices of a job, for the link tables of the cluster.

    python3 -m tessera.train.launch -m tessera.train.links

The first process measures messages to each other one, in turn. If all processes have PyTorch,
they use gloo, and measure all-reduces, too; otherwise they use plain TCP connections of the
standard library. Data are in the memory of the host.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Sequence, Tuple

from tessera.train.reports import report_event

VERSION = 1
SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
REPEATS = 5
MOST_PEERS = 31
PATIENCE = 60.0
"""Seconds for the start of all processes, and for one exchange."""
MOST_SECONDS = 120.0
"""Seconds after which no further peer is measured."""
LONGEST = 1 << 16
"""Maximum bytes of a command."""
Point = Tuple[str, int, int, int, float, float]
"""Primitive, processes in the group, largest rank, bytes, seconds, spread."""


class ProbeConnection:
    """A TCP connection for commands and measured messages."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection

    def write(self, document: Dict[str, Any]) -> None:
        """Send a small document."""
        text = json.dumps(document).encode()
        self.send(len(text).to_bytes(4, "big") + text)

    def read(self) -> Dict[str, Any]:
        """Receive a small document."""
        size = int.from_bytes(self.receive(4), "big")
        found = json.loads(self.receive(min(size, LONGEST)))
        return dict(found)

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        self._connection.sendall(data)

    def receive(self, size: int) -> bytes:
        """Receive exactly ``size`` bytes."""
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = self._connection.recv_into(view[done:])
            if not count:
                raise ConnectionError("the other process has ended")
            done += count
        return bytes(data)


def main() -> int:
    """Measure as one process of the job; returns the exit code."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if world < 2:
        print("A probe of links needs at least 2 devices.", file=sys.stderr)
        return 2
    if rank:
        _follow(_joined(rank, address), rank, world)
        return 0
    begun = time.monotonic()
    lines = _peers(address, world)
    transport = "gloo" if _has_torch() and all(torch for _, torch in lines.values()) else "tcp"
    peers = sorted(lines)[:MOST_PEERS]
    port = _free_port(address[0])
    for line, _ in lines.values():
        line.write({"transport": transport, "peers": peers, "port": port})
    if transport == "gloo":
        points = _gloo_points(0, world, peers, (address[0], port))
    else:
        points = _tcp_points({peer: lines[peer][0] for peer in peers}, begun)
    report_event(
        "profile",
        version=VERSION,
        transport=transport,
        ranks=world,
        points=[list(point) for point in points],
        seconds=round(time.monotonic() - begun, 3),
    )
    return 0


def _has_torch() -> bool:
    try:
        import torch.distributed  # noqa: PLC0415 without PyTorch, TCP is used
    except ImportError:
        return False
    return bool(torch.distributed.is_available())


def _peers(address: Tuple[str, int], world: int) -> Dict[int, Tuple[ProbeConnection, bool]]:
    """Return the connection of each other process, and whether it has PyTorch."""
    found: Dict[int, Tuple[ProbeConnection, bool]] = {}
    with socket.create_server(("", address[1]), backlog=world) as server:
        server.settimeout(PATIENCE)
        while len(found) < world - 1:
            line = ProbeConnection(server.accept()[0])
            told = line.read()
            if isinstance(told.get("rank"), int):
                found[told["rank"]] = line, bool(told.get("torch"))
    return found


def _joined(rank: int, address: Tuple[str, int]) -> ProbeConnection:
    """Return the connection to the first process, which may start later."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            line = ProbeConnection(socket.create_connection(address, timeout=PATIENCE))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    line.write({"rank": rank, "torch": _has_torch()})
    return line


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _follow(line: ProbeConnection, rank: int, world: int) -> None:
    """Take part in the measurements of the first process."""
    told = line.read()
    if told["transport"] == "gloo":
        _gloo_points(rank, world, told["peers"], (os.environ["MASTER_ADDR"], told["port"]))
        return
    while True:
        try:
            size = int(line.read()["echo"])
        except ConnectionError:
            return
        for _ in range(REPEATS + 1):
            line.send(line.receive(size))


def _tcp_points(lines: Dict[int, ProbeConnection], begun: float) -> List[Point]:
    """Return the times of messages over each connection, as half of the round trip."""
    found: List[Point] = []
    for rank, line in lines.items():
        if time.monotonic() - begun > MOST_SECONDS:
            break
        for size in SIZES:
            data = bytes(size)
            line.write({"echo": size})

            def round_trip(line: ProbeConnection = line, data: bytes = data) -> None:
                line.send(data)
                line.receive(len(data))

            found.append(("send", 2, rank, size, *_timed(round_trip, 0.5)))
    return found


def _timed(exchange: Callable[[], None], share: float) -> Tuple[float, float]:
    """Return the median seconds of an exchange and their relative spread; the first is warm-up."""
    seconds = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        exchange()
        seconds.append(share * (time.perf_counter() - begun))
    middle = max(statistics.median(seconds[1:]), 1e-7)
    spread = (max(seconds[1:]) - min(seconds[1:])) / middle
    return float(f"{middle:.4g}"), float(f"{min(spread, 1000.0):.3g}")


def _gloo_points(
    rank: int, world: int, peers: Sequence[int], address: Tuple[str, int]
) -> List[Point]:
    """Measure over gloo; all processes call it with the same peers."""
    import torch  # noqa: PLC0415 nodes may have no PyTorch
    from torch import distributed  # noqa: PLC0415

    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{address[0]}:{address[1]}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=PATIENCE),
    )
    found: List[Point] = []
    for peer in peers:
        pair = distributed.new_group([0, peer])
        for size in SIZES if rank in (0, peer) else ():
            tensor = torch.zeros(size // 4)

            def ping(tensor: Any = tensor, peer: int = peer) -> None:
                (distributed.send if rank == 0 else distributed.recv)(tensor, peer - rank)
                (distributed.recv if rank == 0 else distributed.send)(tensor, peer - rank)

            def add_up(tensor: Any = tensor, group: Any = pair) -> None:
                distributed.all_reduce(tensor, group=group)

            found.append(("send", 2, peer, size, *_timed(ping, 0.5)))
            found.append(("all_reduce", 2, peer, size, *_timed(add_up, 1.0)))
    width = 4
    while width <= world and width - 1 in peers:
        group = distributed.new_group(list(range(width)))
        for size in SIZES if rank < width else ():
            tensor = torch.zeros(size // 4)

            def together(tensor: Any = tensor, group: Any = group) -> None:
                distributed.all_reduce(tensor, group=group)

            found.append(("all_reduce", width, width - 1, size, *_timed(together, 1.0)))
        width *= 2
    distributed.barrier()
    distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    sys.exit(main())
