"""Nodes over SSH: one connection per node, shared by the session, installs and forwards."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import asyncssh

from scheduling.core.charging import NodeClock
from tenants.keyring import SshKey
from tessera import protocol
from tessera.bundle import Bundle
from tessera.device_sharing import DeviceOrder
from tessera.protocol import Inventory, NodeHello, RunStatus
from tessera.storage import StorageProbe
from workers.transports import replies
from workers.transports.authorized_keys import authorize
from workers.transports.base import (
    Chunk,
    HostKeyError,
    NodeEvent,
    NodeLoad,
    Preparation,
    PrepareError,
    RefusedError,
    Saved,
    UnreachableNodeError,
)
from workers.transports.hostkeys import pinned
from workers.transports.jump import JumpHost, connect_to_jump_host
from workers.transports.serve_channel import KEPT_ERROR_BYTES, NotInstalledError, ServeChannel
from workers.transports.session import ServeSession
from workers.transports.uploads import (
    INSTALL_COMMAND,
    PIECE_BYTES,
    serve_command,
    upload,
    upload_state,
)

log = logging.getLogger(__name__)

MOST_CHANNELS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SshAddress:
    """Address of a node, and the keys of both sides.

    Attributes:
        host_key: the pinned public key line.
        client_keys: private keys of the control plane in OpenSSH's format; the current one first.
        jump: the host through which the node is reached; None for a direct connection.
    """

    host: str
    port: int
    user: str
    host_key: str
    client_keys: tuple[bytes, ...] = field(repr=False)
    jump: JumpHost | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Timeouts in seconds.

    Attributes:
        connect: limit of a connection with login.
        keepalive: interval; after three without a response, the node is unreachable.
        request: limit of an ordinary reply.
        probe: limit of a probe of a node or its storages, which waits for drivers and servers.
        prepare: limit of a preparation, including the fetch of its source.
    """

    connect: float = 10.0
    keepalive: float = 5.0
    request: float = 20.0
    probe: float = 180.0
    prepare: float = 600.0


class SshTransport:
    """A node that is reached over SSH and runs plain processes."""

    def __init__(
        self, address: SshAddress, bundle: Bundle, patience: Patience | None = None
    ) -> None:
        """Args: address: of the node. bundle: the node's part. patience: timeouts."""
        self._address = address
        self._bundle = bundle
        self._patience = patience or Patience()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._jump: asyncssh.SSHClientConnection | None = None
        self._session: ServeSession | None = None
        self._channels = asyncio.Semaphore(MOST_CHANNELS)
        self.hello: NodeHello | None = None

    async def open(self) -> NodeHello:
        """Connect, install the node's part if it is not there, and greet."""
        try:
            self._connection = await self._connect(self._address.client_keys)
            try:
                self.hello = await self._greet()
            except NotInstalledError:
                await self._install()
                self.hello = await self._greet()
        except BaseException:
            await self.close()
            raise
        return self.hello

    async def close(self) -> None:
        """Disconnect without waiting for a node that does not respond."""
        connection, self._connection = self._connection, None
        jump, self._jump = self._jump, None
        session, self._session = self._session, None
        if session is not None:
            session.end(UnreachableNodeError("the connection was closed"))
        for line in (connection, jump):
            if line is not None:
                line.abort()

    @property
    def clock(self) -> NodeClock | None:
        """The node's clock against ``time.monotonic``."""
        return None if self._session is None else self._session.clock

    @property
    def heard_at(self) -> float | None:
        """Instant of the last received bytes in the session; None without one."""
        return None if self._session is None else self._session.heard_at

    async def replace_key(self, new: SshKey, *, old: Sequence[str]) -> None:
        """Replace the control plane's key on the node."""
        await self._require_at_jump_host(new)
        await authorize(self._open_connection(), new=new.public, old=old, remove=False)
        try:
            checked = await self._connect((new.private.encode(),))
        except UnreachableNodeError as error:
            raise RefusedError("new-key", f"no sign-in with the new key: {error}") from error
        async with checked:
            await authorize(checked, new=new.public, old=old, remove=True)

    async def probe(self) -> Inventory:
        """Return the node's inventory."""
        reply = await self._ask(protocol.PROBE, patience=self._patience.probe)
        return replies.checked(replies.read_inventory, reply)

    async def storages(self, sources: Sequence[str]) -> list[StorageProbe]:
        """Return the probe of each source of a storage."""
        patience = self._patience.probe
        reply = await self._ask(protocol.STORAGES, patience=patience, sources=list(sources))
        return replies.checked(replies.read_storages, reply)

    async def telemetry(self) -> NodeLoad:
        """Return the current load."""
        return replies.checked(replies.read_telemetry, await self._ask(protocol.TELEMETRY))

    async def prepare(self, preparation: Preparation) -> None:
        """Prepare a run.

        Raises:
            PrepareError: the preparation failed.
        """
        if preparation.container is not None:
            raise PrepareError(
                "no-container-engine", "this node has no container engine", protocol.IMAGE
            )
        try:
            await self._prepare_run(preparation)
        except RefusedError as error:
            raise PrepareError(error.code, error.message, error.failure_class) from error

    async def go(self, run_id: str) -> RunStatus:
        """Start a prepared run, exactly once."""
        return replies.checked(replies.read_run, await self._ask(protocol.GO, run_id=run_id))

    async def cancel(self, run_id: str) -> None:
        """Remove a prepared run."""
        await self._ask(protocol.CANCEL, run_id=run_id)

    async def stop(self, run_id: str, *, grace_seconds: float, reason: str) -> None:
        """Request the end of a run."""
        await self._ask(
            protocol.STOP, run_id=run_id, grace_seconds=grace_seconds, reason=reason[:200]
        )

    async def tune(self, run_id: str, settings: Mapping[str, Any]) -> None:
        """Send a running job its training settings."""
        await self._ask(protocol.TUNE, run_id=run_id, settings=dict(settings))

    async def share(self, run_id: str, number: int, devices: Sequence[DeviceOrder]) -> None:
        """Send a holder the guests of its devices."""
        await self._ask(
            protocol.SHARE,
            run_id=run_id,
            number=number,
            devices=[order.to_json() for order in devices],
        )

    async def runs(self) -> list[RunStatus]:
        """List every run directory on the node."""
        found: list[RunStatus] = []
        after = ""
        while True:
            reply = await self._ask(protocol.RUNS, after=after)
            page, following = replies.checked(replies.read_runs, reply)
            found += page
            if not page or following <= after:
                return found
            after = following

    async def renew(self, run_ids: Sequence[str], seconds: float) -> frozenset[str]:
        """Set a new deadline for runs."""
        reply = await self._ask(protocol.RENEW, run_ids=list(run_ids), seconds=seconds)
        return replies.checked(replies.read_renewed, reply) & frozenset(run_ids)

    async def read(self, run_id: str, stream: str, *, offset: int, limit: int) -> Chunk:
        """Read a piece of a run's log or reports."""
        limit = min(limit, protocol.MAX_READ_BYTES)
        reply = await self._ask(
            protocol.READ, run_id=run_id, stream=stream, offset=offset, limit=limit
        )
        return replies.checked(
            lambda found: replies.read_chunk(found, offset=offset, limit=limit), reply
        )

    async def saved(self, installation: str, job_id: str, *, before: str = "") -> Saved | None:
        """Return the newest checkpoint of a job on this node, or the newest before another one."""
        reply = await self._ask(
            protocol.SAVED, installation=installation, job_id=job_id, before=before
        )
        return replies.checked(replies.read_saved, reply)

    async def read_saved(self, installation: str, job_id: str, *, name: str, offset: int) -> bytes:
        """Read the next piece of the state of a checkpoint."""
        reply = await self._ask(
            protocol.READ_SAVED,
            installation=installation,
            job_id=job_id,
            name=name,
            offset=offset,
            limit=PIECE_BYTES,
        )
        return replies.checked(lambda found: replies.read_piece(found, limit=PIECE_BYTES), reply)

    async def put_saved(
        self, installation: str, job_id: str, saved: Saved, pieces: AsyncIterator[bytes]
    ) -> None:
        """Create a checkpoint of a job here from its state."""
        await upload_state(
            self._ask, pieces, installation=installation, job_id=job_id, sha256=saved.sha256
        )
        await self._ask(
            protocol.PUT_SAVED,
            patience=self._patience.prepare,
            installation=installation,
            job_id=job_id,
            name=saved.name,
            step=saved.step,
            sha256=saved.sha256,
            size=saved.size,
        )

    async def remove(self, run_id: str) -> None:
        """Delete a run that has ended."""
        await self._ask(protocol.REMOVE, run_id=run_id)

    def events(self) -> AsyncIterator[NodeEvent]:
        """Yield events of the node."""
        return self._open_session().events()

    async def _ask(
        self, operation: str, *, patience: float | None = None, **arguments: Any
    ) -> protocol.Json:
        return await self._open_session().request(operation, patience=patience, **arguments)

    async def _prepare_run(self, preparation: Preparation) -> protocol.Json:
        if preparation.archive is not None and preparation.run.source_archive is not None:
            await upload(self._ask, preparation.archive, preparation.run.source_archive.sha256)
        return await self._ask(
            protocol.PREPARE,
            patience=self._patience.prepare,
            run=preparation.run.to_json(),
            secrets=preparation.secrets,
        )

    def _open_session(self) -> ServeSession:
        if self._session is None:
            raise UnreachableNodeError("no connection to the node")
        return self._session

    async def _require_at_jump_host(self, new: SshKey) -> None:
        """Refuse a new key that the jump host does not accept, before the old one is removed."""
        if self._address.jump is None:
            return
        try:
            line = await self._connect_to_jump_host(self._address.jump, (new.private.encode(),))
        except UnreachableNodeError as error:
            raise RefusedError("new-key", f"no sign-in with the new key: {error}") from error
        line.abort()

    async def _connect_to_jump_host(
        self, jump: JumpHost, client_keys: Sequence[bytes]
    ) -> asyncssh.SSHClientConnection:
        return await connect_to_jump_host(
            jump,
            client_keys,
            seconds=self._patience.connect,
            keepalive=self._patience.keepalive,
        )

    async def _connect(self, client_keys: Sequence[bytes]) -> asyncssh.SSHClientConnection:
        address, where = self._address, f"{self._address.host}:{self._address.port}"
        if address.jump is not None:
            where = f"{where} through {address.jump.name}"
            if self._jump is None:
                self._jump = await self._connect_to_jump_host(address.jump, address.client_keys)
        try:
            async with asyncio.timeout(self._patience.connect):
                return await asyncssh.connect(
                    address.host,
                    port=address.port,
                    tunnel=self._jump or (),
                    username=address.user,
                    client_keys=list(client_keys),
                    known_hosts=pinned(address.host_key),
                    preferred_auth="publickey",
                    config=None,
                    agent_path=None,
                    gss_host=None,
                    keepalive_interval=self._patience.keepalive,
                    keepalive_count_max=3,
                )
        except TimeoutError:
            raise UnreachableNodeError(
                f"{where} does not respond within {self._patience.connect:g} s"
            ) from None
        except asyncssh.HostKeyNotVerifiable:
            raise HostKeyError(f"{where} presents a host key other than the pinned one") from None
        except asyncssh.PermissionDenied:
            raise UnreachableNodeError(
                f"{where} rejects the control plane's key for user {address.user}"
            ) from None
        except (OSError, asyncssh.Error) as error:
            raise UnreachableNodeError(f"{where}: {error}") from error

    async def _greet(self) -> NodeHello:
        """Start ``serve`` and read its greeting."""
        line = await self._start_serve()
        self._session = line.session
        try:
            reply = await self._ask(
                protocol.HELLO, patience=self._patience.connect, protocol=protocol.PROTOCOL_VERSION
            )
        except UnreachableNodeError as error:
            if line.exit_status is None:
                raise
            if line.exit_status == 127:
                raise UnreachableNodeError("python3 is not installed on the node") from error
            raise NotInstalledError(str(error)) from error
        except RefusedError as error:
            raise UnreachableNodeError(f"the node refused the greeting: {error}") from error
        hello = replies.checked(replies.read_hello, reply)
        if hello.protocol != protocol.PROTOCOL_VERSION:
            raise UnreachableNodeError(f"the node uses protocol {hello.protocol}")
        return hello

    async def _start_serve(self) -> ServeChannel:
        connection = self._open_connection()
        try:
            async with self._channels, asyncio.timeout(self._patience.connect):
                line = ServeChannel(self._patience.request)
                await connection.create_session(
                    lambda: line, serve_command(self._bundle.sha256), encoding=None
                )
        except TimeoutError:
            raise UnreachableNodeError("the node did not open a session in time") from None
        except (OSError, asyncssh.Error) as error:
            raise UnreachableNodeError(f"no session on the node: {error}") from error
        return line

    async def _install(self) -> None:
        """Write the bundle to its path on the node."""
        content = self._bundle.data
        head = json.dumps({"size": len(content), "sha256": self._bundle.sha256}).encode()
        connection = self._open_connection()
        try:
            async with self._channels, asyncio.timeout(self._patience.request):
                done = await connection.run(
                    INSTALL_COMMAND, input=head + b"\n" + content, encoding=None
                )
        except TimeoutError:
            raise UnreachableNodeError(
                "the transfer of the bundle to the node timed out"
            ) from None
        except (OSError, asyncssh.Error) as error:
            raise UnreachableNodeError(f"the bundle could not be installed: {error}") from error
        if done.exit_status != 0:
            said = _text(done.stderr)
            raise UnreachableNodeError(f"the bundle could not be installed: {said.strip()}")
        log.info("installed the node program on %s", self._address.host)

    def _open_connection(self) -> asyncssh.SSHClientConnection:
        if self._connection is None:
            raise UnreachableNodeError("no connection to the node")
        return self._connection


def _text(output: bytes | str | None) -> str:
    """Return the end of a command's stderr."""
    raw = output.encode() if isinstance(output, str) else output or b""
    return raw[-KEPT_ERROR_BYTES:].decode("utf-8", "replace")
