"""Many nodes behind one SSH server, each a ``FakeNode`` that speaks the node protocol.

    python -m tests.support.simulated_nodes COUNT FOLDER

Every node has its own address on loopback and its own user name, on one port. The process writes
the port and the host key to ``FOLDER/nodes.json``, reads the accepted key from
``FOLDER/authorized_keys``, and answers each line of its input with a census of the sessions.
Without processes on the nodes, one process serves thousands of sessions, and the clients use their
usual transport.
"""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncssh

from tessera import protocol
from tessera.device_sharing import DeviceOrder
from tessera.protocol import ProtocolError, RunSpec, RunStatus
from tessera.wire import Fields
from tests.support.fake_transport import FakeNode, FakeTransport
from tests.support.whole_portal import free_port
from workers.transports.base import NodeEvent, Preparation, RefusedError, TransportError
from workers.transports.ssh import SshAddress

LISTING: Final = "nodes.json"
AUTHORIZED_KEYS: Final = "authorized_keys"
BACKLOG: Final = 1024


def node_name(number: int) -> str:
    """Return the name, and the user name, of a node."""
    return f"node-{number:04d}"


def boot_id(number: int) -> str:
    """Return the boot ID of a node."""
    return f"boot-{number}"


def node_host(number: int) -> str:
    """Return the address of a node."""
    return f"127.1.{number // 250}.{1 + number % 250}"


@dataclass
class Census:
    """State of the sessions of all nodes.

    Attributes:
        reconciled: nodes with an open session that has listed its runs.
        connections: sign-ins so far.
        requests: requests so far.
    """

    reconciled: set[str] = field(default_factory=set)
    connections: int = 0
    requests: int = 0

    def to_json(self) -> dict[str, int]:
        return {
            "reconciled": len(self.reconciled),
            "connections": self.connections,
            "requests": self.requests,
        }


class NodeProgram:
    """``serve`` of one session: lines of requests in, replies and events out."""

    def __init__(self, node: FakeNode, write: Callable[[bytes], None]) -> None:
        self._node = node
        self._line = FakeTransport(node)
        self._write = write
        self._tasks: set[asyncio.Task[None]] = set()
        self._rest = b""
        self._operations: dict[str, Callable[[Fields], Coroutine[Any, Any, protocol.Json]]] = {
            protocol.HELLO: self._hello,
            protocol.PROBE: self._probe,
            protocol.STORAGES: self._storages,
            protocol.TELEMETRY: self._telemetry,
            protocol.PREPARE: self._prepare,
            protocol.GO: self._go,
            protocol.CANCEL: self._cancel,
            protocol.STOP: self._stop,
            protocol.TUNE: self._tune,
            protocol.SHARE: self._share,
            protocol.RUNS: self._runs,
            protocol.RENEW: self._renew,
            protocol.READ: self._read,
            protocol.SAVED: self._saved,
            protocol.REMOVE: self._remove,
        }

    def feed(self, data: bytes) -> list[str]:
        """Begin to execute all complete requests; return the names of their operations."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        names = []
        for line in lines:
            request = protocol.decode_line(line)
            number, name = request.pop("id"), request.pop("op")
            self._begin(self._answer(number, name, Fields(request, name)))
            names.append(name)
        return names

    def close(self) -> None:
        """End with the connection; runs continue."""
        for task in self._tasks:
            task.cancel()
        with suppress(ValueError):
            self._node.sessions.remove(self._line)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, name: str, take: Fields) -> None:
        try:
            reply = {"ok": True, **await self._operations.get(name, _unknown)(take)}
        except ProtocolError as error:
            reply = {"ok": False, "error": error.to_json()}
        except RefusedError as error:
            refused = ProtocolError(error.code, error.message, error.failure_class)
            reply = {"ok": False, "error": refused.to_json()}
        self._send({"id": number, "now": self._node.time(), **reply})

    def _send(self, message: protocol.Json) -> None:
        with suppress(OSError):
            self._write(protocol.encode_line(message))

    async def _hear(self) -> None:
        with suppress(TransportError):
            async for event in self._line.events():
                self._send({**_event(event), "now": self._node.time()})

    async def _hello(self, take: Fields) -> protocol.Json:
        hello = await self._line.open()
        self._begin(self._hear())
        return {"hello": hello.to_json()}

    async def _probe(self, take: Fields) -> protocol.Json:
        return {"inventory": (await self._line.probe()).to_json()}

    async def _storages(self, take: Fields) -> protocol.Json:
        found = await self._line.storages(take.texts("sources", 100, 4096))
        return {"storages": [one.to_json() for one in found]}

    async def _telemetry(self, take: Fields) -> protocol.Json:
        load = await self._line.telemetry()
        devices = [{"index": one.index, "utilisation": one.utilisation} for one in load.devices]
        return {"telemetry": {"devices": devices, "load": load.load}}

    async def _prepare(self, take: Fields) -> protocol.Json:
        run = RunSpec.from_json(take.raw("run"))
        secrets = protocol.check_secrets(take.raw("secrets") or {})
        await self._line.prepare(Preparation(run=run, secrets=secrets))
        return {"run": self._node.runs[run.run_id].status.to_json()}

    async def _go(self, take: Fields) -> protocol.Json:
        return {"run": (await self._line.go(_run_id(take))).to_json()}

    async def _cancel(self, take: Fields) -> protocol.Json:
        await self._line.cancel(_run_id(take))
        return {}

    async def _stop(self, take: Fields) -> protocol.Json:
        seconds, reason = take.number("grace_seconds", 0.0, 0.0, 1e6), take.text("reason", "", 200)
        await self._line.stop(_run_id(take), grace_seconds=seconds, reason=reason)
        return {}

    async def _tune(self, take: Fields) -> protocol.Json:
        settings = take.raw("settings")
        await self._line.tune(_run_id(take), settings if isinstance(settings, dict) else {})
        return {}

    async def _share(self, take: Fields) -> protocol.Json:
        orders = [DeviceOrder.from_json(item) for item in take.items("devices", 4096)]
        await self._line.share(_run_id(take), take.integer("number", None, 0, 1 << 53), orders)
        return {}

    async def _runs(self, take: Fields) -> protocol.Json:
        after = take.text("after", "", 256)
        found = await self._line.runs() if not after else []
        return {"runs": [status.to_json() for status in found]}

    async def _renew(self, take: Fields) -> protocol.Json:
        run_ids = take.texts("run_ids", 10_000, 256)
        confirmed = await self._line.renew(run_ids, take.number("seconds", None, 0.0, 1e9))
        return {"deadlines": dict.fromkeys(sorted(confirmed), 0.0)}

    async def _read(self, take: Fields) -> protocol.Json:
        chunk = await self._line.read(
            _run_id(take),
            take.text("stream", None, 16),
            offset=take.integer("offset", 0, 0, 1 << 53),
            limit=take.integer("limit", None, 1, protocol.MAX_READ_BYTES),
        )
        return {
            "data": base64.b64encode(chunk.data).decode(),
            "offset": chunk.offset,
            "end": chunk.end,
            "closed": chunk.closed,
        }

    async def _saved(self, take: Fields) -> protocol.Json:
        place = take.text("installation", "", 64), take.text("job_id", "", 64)
        found = await self._line.saved(*place, before=take.text("before", "", 256))
        return {"saved": None if found is None else asdict(found)}

    async def _remove(self, take: Fields) -> protocol.Json:
        await self._line.remove(_run_id(take))
        return {}


class _Session(asyncssh.SSHServerSession[bytes]):
    """The channel of one session."""

    def __init__(self, name: str, node: FakeNode, census: Census) -> None:
        self._name, self._node, self._census = name, node, census
        self._program: NodeProgram | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._program = NodeProgram(self._node, chan.write)

    def exec_requested(self, command: str) -> bool:
        """Accept the command of sessions; its program runs here."""
        return True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._program is None:
            return
        for operation in self._program.feed(data):
            self._census.requests += 1
            if operation == protocol.RUNS:
                self._census.reconciled.add(self._name)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._program is not None:
            self._program.close()
        if not self._node.sessions:
            self._census.reconciled.discard(self._name)


class _Server(asyncssh.SSHServer):
    """Signs each node's user in by key."""

    def __init__(self, farm: "NodeFarm") -> None:
        self._farm = farm
        self._name = ""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._farm.connections.add(conn)
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        self._farm.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        self._name = username
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username in self._farm.nodes and key.public_data == self._farm.accepted

    def session_requested(self) -> _Session:
        self._farm.census.connections += 1
        return _Session(self._name, self._farm.nodes[self._name], self._farm.census)


@dataclass
class NodeFarm:
    """The nodes by name, and the SSH server of all.

    Attributes:
        accepted: the public key that every node accepts, in SSH's format.
    """

    nodes: dict[str, FakeNode]
    accepted: bytes
    census: Census = field(default_factory=Census)
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    host_key: str = ""
    port: int = 0

    def address(self, number: int, client_key: bytes) -> SshAddress:
        """Return the address of one node."""
        return SshAddress(
            host=node_host(number),
            port=self.port,
            user=node_name(number),
            host_key=self.host_key,
            client_keys=(client_key,),
        )


@asynccontextmanager
async def node_farm(count: int, public_key: str) -> AsyncIterator[NodeFarm]:
    """Serve simulated nodes on loopback inside the block.

    Args:
        count: number of nodes.
        public_key: the key that they accept, as a line.
    """
    accepted = asyncssh.import_public_key(public_key).public_data
    farm = NodeFarm({node_name(n): FakeNode(boot_id=boot_id(n)) for n in range(count)}, accepted)
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    farm.port = free_port()
    server = await asyncssh.listen(
        [node_host(number) for number in range(count)],  # type: ignore[arg-type] # as asyncio
        farm.port,
        backlog=BACKLOG,
        server_factory=lambda: _Server(farm),
        server_host_keys=[host_key],
        encoding=None,
        agent_forwarding=False,
        allow_scp=False,
        config=None,
        login_timeout=60,
        gss_host=None,
    )
    farm.host_key = host_key.export_public_key("openssh").decode().strip()
    try:
        yield farm
    finally:
        server.close()
        for connection in list(farm.connections):
            connection.abort()
        await server.wait_closed()


def _event(event: NodeEvent) -> protocol.Json:
    if isinstance(event, RunStatus):
        return {"event": protocol.EVENT_RUN, "run": event.to_json()}
    return {"event": protocol.EVENT_GREW, **asdict(event)}


async def _unknown(take: Fields) -> protocol.Json:
    raise ProtocolError("unknown-op", "no such operation")


def _run_id(take: Fields) -> str:
    return take.text("run_id", None, 256)


async def _main(count: int, folder: Path) -> None:
    async with node_farm(count, (folder / AUTHORIZED_KEYS).read_text()) as farm:
        listing = {"host_key": farm.host_key, "port": farm.port, "names": list(farm.nodes)}
        partial = folder / f"{LISTING}.tmp"
        partial.write_text(json.dumps(listing))
        partial.rename(folder / LISTING)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(farm.census.to_json()), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), Path(sys.argv[2])))
