"""A node in memory with the interface of real transports; it passes the same contract tests."""

import asyncio
import hashlib
import itertools
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scheduling.core.charging import NodeClock
from tenants.keyring import SshKey
from tessera import protocol
from tessera.device_sharing import DeviceOrder
from tessera.inventory import Device, Inventory, NodeHello
from tessera.protocol import ExitRecord, RunStatus
from tessera.storage import StorageProbe
from workers.transports.base import (
    Chunk,
    DeviceReading,
    Grew,
    NodeEvent,
    NodeLoad,
    Preparation,
    PrepareError,
    RefusedError,
    Saved,
    UnreachableNodeError,
)


@dataclass
class FakeRun:
    """One run directory."""

    preparation: Preparation
    status: RunStatus
    log: bytes = b""
    reports: bytes = b""
    starts: int = 0
    dropped: int = 0
    dropped_reports: int = 0
    lease: float | None = None
    settings: dict[str, Any] | None = None
    share_number: int = 0
    shares: list[DeviceOrder] = field(default_factory=list)


@dataclass
class FakeNode:
    """State of a node across connections: its runs, and its behaviour.

    ``commands`` of a run are separated by ``;``: ``echo words``, ``sleep N`` (until stopped),
    ``exit N``, ``true``.
    """

    boot_id: str = "boot-1"
    clock_ahead: float = 0.0
    devices: int = 8
    reachable: bool = True
    reply_seconds: float = 0.0
    refuse_prepare: PrepareError | None = None
    refuse_prepare_once: PrepareError | None = None
    authorized: set[str] = field(default_factory=set)
    """Public keys of the control plane."""
    runs: dict[str, FakeRun] = field(default_factory=dict)
    sessions: list["FakeTransport"] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    saved: dict[tuple[str, str], tuple[Saved, bytes]] = field(default_factory=dict)
    earlier: dict[tuple[str, str], tuple[Saved, bytes]] = field(default_factory=dict)
    keeps_pieces: bool = False
    """Whether it does not respond to requests for pieces of a checkpoint now."""
    load: DeviceReading = field(default_factory=lambda: DeviceReading(index=0, utilisation=0.5))
    """Telemetry of one of its devices."""
    pids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(100))

    def time(self) -> float:
        """The node's own clock, in seconds since the epoch."""
        return time.time() + self.clock_ahead

    def inventory(self) -> Inventory:
        """Return the result of a probe."""
        return Inventory(
            devices=[
                Device(index=n, type="cpu-slot", path=[], declared=True)
                for n in range(self.devices)
            ],
            levels=["node", "device"],
            cpus=self.devices,
            memory_bytes=1 << 30,
            boot_id=self.boot_id,
            python="3.11",
        )

    def transport(self) -> "FakeTransport":
        """Return a new transport to this node."""
        return FakeTransport(self)

    def drop_connections(self) -> None:
        """Break all connections."""
        for session in list(self.sessions):
            session.cut(UnreachableNodeError("the network is gone"))

    def finish(
        self,
        run_id: str,
        code: int | None,
        *,
        cause: str = protocol.CAUSE_EXITED,
        signal: int | None = None,
    ) -> None:
        """End the main process of the job."""
        run = self.runs[run_id]
        clean = code == 0 or cause == protocol.CAUSE_STOPPED
        record = ExitRecord(
            cause=cause,
            failure="" if clean else protocol.USER,
            at=self.time(),
            code=code,
            signal=signal,
        )
        self._set(run, phase=protocol.EXITED, exit=record)

    def write(self, run_id: str, *, log: bytes = b"", reports: bytes = b"") -> None:
        """Write to the streams of the job."""
        run = self.runs[run_id]
        run.log += log
        run.reports += reports
        run.status = replace(run.status, log_end=len(run.log), reports_end=len(run.reports))
        self._emit(Grew(run_id=run_id, log_end=len(run.log), reports_end=len(run.reports)))

    def start(self, run: FakeRun) -> RunStatus:
        """Start a run exactly once and interpret its command."""
        if run.starts == 0:
            run.starts = 1
            self._set(run, phase=protocol.RUNNING, pid=next(self.pids), started_at=self.time())
            started = run.status
            self._interpret(run)
            return started
        return run.status

    def _interpret(self, run: FakeRun) -> None:
        for statement in run.preparation.run.command.split(";"):
            words = shlex.split(statement)
            if words[0] == "echo":
                self.write(run.status.run_id, log=" ".join(words[1:]).encode() + b"\n")
            elif words[0] == "sleep":
                return
            elif words[0] == "exit":
                self.finish(run.status.run_id, int(words[1]))
                return
        self.finish(run.status.run_id, 0)

    def _set(self, run: FakeRun, **changes: object) -> None:
        run.status = replace(run.status, **changes)  # type: ignore[arg-type]
        self._emit(run.status)

    def _emit(self, event: NodeEvent) -> None:
        for session in self.sessions:
            session.take(event)


class FakeTransport:
    """A transport to a ``FakeNode``."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self._news: dict[tuple[str, str], NodeEvent] = {}
        self._something = asyncio.Event()
        self._ended: UnreachableNodeError | None = UnreachableNodeError("there is no connection")
        self.heard_at: float | None = None

    async def open(self) -> NodeHello:
        if self._node.reply_seconds:
            await asyncio.sleep(self._node.reply_seconds)
        if not self._node.reachable:
            raise UnreachableNodeError("nobody answers")
        self._ended = None
        self.heard_at = time.monotonic()
        self._node.sessions.append(self)
        return NodeHello(
            protocol=protocol.PROTOCOL_VERSION,
            pid=1,
            boot_id=self._node.boot_id,
            hostname="fake",
            python="3.11",
            home="/home/tessera",
            root="/home/tessera/.tessera",
            bundle="/home/tessera/.tessera/node.pyz",
            uid=1000,
            gid=1000,
            clock=time.monotonic(),
            runs=len(self._node.runs),
        )

    async def close(self) -> None:
        self.cut(UnreachableNodeError("the connection was closed"))

    @property
    def clock(self) -> NodeClock | None:
        now = time.monotonic()
        return NodeClock(ahead=self._node.time() - now, error=0.0, compared=now)

    async def replace_key(self, new: SshKey, *, old: Sequence[str]) -> None:
        await self._ask("replace_key", new.public)
        self._node.authorized = (self._node.authorized | {new.public}) - set(old)

    async def probe(self) -> Inventory:
        await self._ask("probe")
        return self._node.inventory()

    async def storages(self, sources: Sequence[str]) -> list[StorageProbe]:
        await self._ask("storages")
        return [
            StorageProbe(source, path=source, total_bytes=1 << 40, free_bytes=1 << 39)
            for source in sources
        ]

    async def telemetry(self) -> NodeLoad:
        await self._ask("telemetry")
        return NodeLoad(devices=(self._node.load,), load=0.5)

    async def prepare(self, preparation: Preparation) -> None:
        run_id = preparation.run.run_id
        await self._ask("prepare", run_id)
        if self._node.refuse_prepare is not None:
            raise self._node.refuse_prepare
        once, self._node.refuse_prepare_once = self._node.refuse_prepare_once, None
        if once is not None:
            raise once
        if run_id not in self._node.runs:
            status = RunStatus(
                run_id=run_id,
                phase=protocol.PREPARED,
                boot_id=self._node.boot_id,
                installation=preparation.run.installation,
            )
            self._node.runs[run_id] = FakeRun(preparation, status)
            self._node._emit(status)

    async def go(self, run_id: str) -> RunStatus:
        return self._node.start(await self._run("go", run_id))

    async def cancel(self, run_id: str) -> None:
        await self._ask("cancel", run_id)
        run = self._node.runs.get(run_id)
        if run is not None and run.starts:
            raise RefusedError("already-started", "the run has started")
        self._node.runs.pop(run_id, None)

    async def stop(self, run_id: str, *, grace_seconds: float, reason: str) -> None:
        run = await self._run("stop", run_id)
        if run.status.phase == protocol.RUNNING:
            self._node.finish(run_id, None, cause=protocol.CAUSE_STOPPED, signal=15)

    async def tune(self, run_id: str, settings: Mapping[str, Any]) -> None:
        run = await self._run("tune", run_id)
        if run.status.phase != protocol.RUNNING:
            raise RefusedError("not-running", "the run does not run")
        run.settings = dict(settings)

    async def share(self, run_id: str, number: int, devices: Sequence[DeviceOrder]) -> None:
        run = await self._run("share", run_id)
        if run.status.phase != protocol.RUNNING:
            raise RefusedError("not-running", "the run does not run")
        if number > run.share_number:
            run.share_number, run.shares = number, list(devices)

    async def runs(self) -> list[RunStatus]:
        await self._ask("runs")
        return [run.status for run in self._node.runs.values()]

    async def renew(self, run_ids: Sequence[str], seconds: float) -> frozenset[str]:
        await self._ask("renew", ",".join(run_ids))
        known = [self._node.runs[name] for name in run_ids if name in self._node.runs]
        for run in known:
            run.lease = time.monotonic() + seconds
        return frozenset(run.status.run_id for run in known)

    async def read(self, run_id: str, stream: str, *, offset: int, limit: int) -> Chunk:
        run = await self._run("read", run_id)
        whole = run.log if stream == protocol.STREAM_LOG else run.reports
        is_log = stream == protocol.STREAM_LOG
        offset = max(offset, run.dropped if is_log else run.dropped_reports)
        return Chunk(
            data=whole[offset : offset + limit],
            offset=min(offset, len(whole)),
            end=len(whole),
            closed=run.status.phase == protocol.EXITED,
        )

    async def saved(self, installation: str, job_id: str, *, before: str = "") -> Saved | None:
        await self._ask("saved", job_id)
        found = self._node.saved.get((installation, job_id))
        if found is not None and before == found[0].name:
            found = self._node.earlier.get((installation, job_id))
        return found[0] if found else None

    async def read_saved(self, installation: str, job_id: str, *, name: str, offset: int) -> bytes:
        await self._ask("read_saved", job_id)
        while self._node.keeps_pieces:
            await asyncio.sleep(0.01)
        places = (self._node.saved, self._node.earlier)
        found = next(
            (
                place[installation, job_id]
                for place in places
                if (installation, job_id) in place and place[installation, job_id][0].name == name
            ),
            None,
        )
        if found is None:
            raise RefusedError("no-checkpoint", "there is none")
        return found[1][offset : offset + 4]

    async def put_saved(
        self, installation: str, job_id: str, saved: Saved, pieces: AsyncIterator[bytes]
    ) -> None:
        await self._ask("put_saved", job_id)
        content = b"".join([piece async for piece in pieces])
        if hashlib.sha256(content).hexdigest() != saved.sha256:
            raise RefusedError("bad-blob", "the upload does not have this SHA-256")
        self._node.saved[installation, job_id] = (saved, content)

    async def remove(self, run_id: str) -> None:
        await self._ask("remove", run_id)
        run = self._node.runs.get(run_id)
        if run is not None and run.status.phase != protocol.EXITED:
            raise RefusedError("not-exited", "the run has not ended")
        self._node.runs.pop(run_id, None)

    async def events(self) -> AsyncIterator[NodeEvent]:
        while True:
            await self._something.wait()
            self._something.clear()
            news, self._news = self._news, {}
            for event in news.values():
                yield event
            if self._ended is not None:
                raise self._ended

    def take(self, event: NodeEvent) -> None:
        """Receive one event of the node."""
        self.heard_at = time.monotonic()
        self._news[type(event).__name__, event.run_id] = event
        self._something.set()

    def cut(self, error: UnreachableNodeError) -> None:
        """Break the connection."""
        self._ended = error
        self._something.set()
        if self in self._node.sessions:
            self._node.sessions.remove(self)

    async def _run(self, operation: str, run_id: str) -> FakeRun:
        await self._ask(operation, run_id)
        try:
            return self._node.runs[run_id]
        except KeyError:
            raise RefusedError("unknown-run", f"there is no run {run_id}") from None

    async def _ask(self, operation: str, subject: str = "") -> None:
        if self._node.reply_seconds:
            await asyncio.sleep(self._node.reply_seconds)
        if self._ended is not None:
            raise self._ended
        self.heard_at = time.monotonic()
        self._node.asked.append((operation, subject))


async def until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)
