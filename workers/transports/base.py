"""What the control plane asks of a node, whatever carries the words: the port and its values."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from scheduling.core.charging import NodeClock
from tessera import protocol
from tessera.protocol import Inventory, NodeHello, RunSpec, RunStatus


class TransportError(Exception):
    """Something between the control plane and a node did not work; the message says what."""


class UnreachableError(TransportError):
    """The node does not answer, or the connection to it broke. Nothing is known about its runs."""


class HostKeyError(UnreachableError):
    """The node answers with another host key than the pinned one; nothing was said to it."""


class MisbehavedError(UnreachableError):
    """The node sent what the protocol does not allow; the session was ended."""


class RefusedError(TransportError):
    """The node has understood a request and refused it.

    Attributes:
        code: a stable code.
        message: a sentence for people, from the node; shortened.
        failure_class: whose fault it is (``protocol.FAILURES``).
    """

    def __init__(self, code: str, message: str, failure_class: str = protocol.PLATFORM) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.failure_class = failure_class


class PrepareError(RefusedError):
    """A run could not be prepared on this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of one of a run's streams.

    Attributes:
        offset: where ``data`` really starts; later than asked for where the node dropped bytes.
        end: logical size of the stream at this moment.
        closed: nothing more will be written.
    """

    data: bytes
    offset: int
    end: int
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Grew:
    """A run's streams have grown to these logical sizes."""

    run_id: str
    log_end: int
    reports_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """What a device does now; None where the node cannot tell.

    Attributes:
        utilisation: share of the last interval in which it was busy, 0 to 1.
        memory_bytes: memory in use.
        temperature: degrees Celsius.
    """

    index: int
    utilisation: float | None = None
    memory_bytes: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What a node does now.

    Attributes:
        load: runnable processes, averaged over a minute.
        memory_used_bytes: memory in use on the whole node.
        disk_free_bytes: free in the file system of the runner's home, for the node's account.
        disk_total_bytes: size of that file system.
    """

    devices: tuple[DeviceReading, ...] = ()
    load: float | None = None
    memory_used_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container that a run wants.

    Attributes:
        image: reference of the image.
        gpus: indices of the node's GPUs to hand in; empty on a node without GPUs.
        labels: labels of the container; all begin with ``tessera.``.
        login: ``user:password`` for the image's registry; empty: none. For the engine alone.
        tenant: whose cached images the job may use while the registry does not answer.
        local_images: prefixes of images that the node has from no registry.
    """

    image: str
    gpus: tuple[int, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    login: str = field(default="", repr=False)
    tenant: str = ""
    local_images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSaved:
    """Where a job's last checkpoint lies, as the job has told.

    Attributes:
        node_id, node: the node's row and name.
    """

    node_id: int
    node: str
    step: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Everything that one run needs on its node before it can start.

    Attributes:
        run: the run; ``source_archive`` in it names ``archive`` by its digest.
        secrets: values by name, for files that only the job can read.
        archive: the uploaded source on the control plane's disk.
        container: the container to make; None for a plain process.
        last: where the job's last checkpoint lies, if that is another node; None: nothing is to
            be brought.
    """

    run: RunSpec
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    archive: Path | None = None
    container: Container | None = None
    last: LastSaved | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint of a job on a node, as its manifest says.

    Attributes:
        name: of its directory.
        sha256: of its state; ``size`` is that of the state, in bytes.
    """

    name: str
    step: int
    sha256: str
    size: int


NodeEvent: TypeAlias = RunStatus | Grew


class Transport(Protocol):
    """One node's line to the control plane. Every method may raise ``UnreachableError``."""

    @property
    def clock(self) -> NodeClock | None:
        """The node's clock against ``time.monotonic``; None until the node reports its time."""

    @property
    def heard_at(self) -> float | None:
        """When anything last arrived, by ``time.monotonic``; None without a session."""

    async def open(self) -> NodeHello:
        """Connect, put the node's part in place, and greet."""

    async def close(self) -> None:
        """Hang up. What runs on the node goes on."""

    async def probe(self) -> Inventory:
        """What the node has."""

    async def telemetry(self) -> NodeLoad:
        """What the node does now."""

    async def prepare(self, preparation: Preparation) -> None:
        """Put everything in place for a run; doing it again changes nothing.

        Raises:
            PrepareError: it cannot be done, with the class of the failure.
        """

    async def go(self, run_id: str) -> RunStatus:
        """Start a prepared run, exactly once, however often it is asked; says where it stands.

        Raises:
            RefusedError: there is no such prepared run, or its process could not be executed.
        """

    async def cancel(self, run_id: str) -> None:
        """Remove a prepared run; fine when there is none.

        Raises:
            RefusedError: it has started (code ``already-started``).
        """

    async def stop(self, run_id: str, *, grace_seconds: float, reason: str) -> None:
        """Ask a run to end: notice, grace, kill. Returns at once.

        Raises:
            RefusedError: there is no such run.
        """

    async def tune(self, run_id: str, settings: Mapping[str, Any]) -> None:
        """Tell a running job how to work from now on, as a whole (see ``tessera.train.control``).

        Raises:
            RefusedError: it does not run, or the node cannot write.
        """

    async def runs(self) -> list[RunStatus]:
        """Every run directory on the node."""

    async def renew(self, run_ids: Sequence[str], seconds: float) -> frozenset[str]:
        """Give runs a new deadline; returns those for which the node has confirmed it."""

    async def read(self, run_id: str, stream: str, *, offset: int, limit: int) -> Chunk:
        """A piece of a run's ``log`` or ``reports``.

        Raises:
            RefusedError: there is no such run.
        """

    async def saved(self, installation: str, job_id: str, *, before: str = "") -> Saved | None:
        """The newest checkpoint of a job on this node; its state has not been verified.

        Args:
            installation: whose job it is.
            job_id: which.
            before: the name of a checkpoint: the newest of those before it is meant.
        """

    async def read_saved(self, installation: str, job_id: str, *, name: str, offset: int) -> bytes:
        """The next piece of the state of a checkpoint; empty at its end.

        Raises:
            RefusedError: it cannot be read.
        """

    async def put_saved(
        self, installation: str, job_id: str, saved: Saved, pieces: AsyncIterator[bytes]
    ) -> None:
        """Make a checkpoint of a job on this node from its state, verified by its hash.

        Raises:
            RefusedError: it did not arrive whole, or the disk does not take it.
        """

    async def remove(self, run_id: str) -> None:
        """Delete a run that has ended; fine when there is none.

        Raises:
            RefusedError: it has not ended.
        """

    def events(self) -> AsyncIterator[NodeEvent]:
        """News from the node as they come, the newest of each run; raises when the line breaks."""
