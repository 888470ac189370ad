"""The transport port: requests of the control plane to a node, and their values."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from scheduling.core.charging import NodeClock
from scheduling.core.jobspec import NO_SETTINGS, ContainerSettings
from tenants.keyring import SshKey
from tessera import protocol
from tessera.device_sharing import DeviceOrder
from tessera.inventory import BY_DEVICE_REQUEST
from tessera.protocol import Inventory, NodeHello, RunSpec, RunStatus
from tessera.storage import StorageProbe


class TransportError(Exception):
    """A failure between the control plane and a node; the message has the cause."""


class UnreachableNodeError(TransportError):
    """The node does not respond, or its connection broke. The state of its runs is unknown."""


class HostKeyError(UnreachableNodeError):
    """The node's host key is not the pinned one; nothing was sent to it."""


class MisbehavedError(UnreachableNodeError):
    """The node violated the protocol; the session was ended."""


class RefusedError(TransportError):
    """The node refused a valid request.

    Attributes:
        code: a stable code.
        message: text for people, from the node; shortened.
        failure_class: one of ``protocol.FAILURES``.
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
    """A part of an output stream of a run.

    Attributes:
        offset: start of ``data``; later than requested if the node dropped bytes.
        end: current logical size of the stream.
        closed: whether the stream has ended.
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
class SuspensionReading:
    """Suspensions of a run that takes turns, since it shares its device.

    Attributes:
        tier: how it was suspended last (``T0`` or ``T1``); empty before.
        number: number of its suspensions.
        seconds: time for which it was suspended.
        now_for: seconds of its current suspension; None while it is active.
    """

    tier: str = ""
    number: int = 0
    seconds: float = 0.0
    now_for: float | None = None


NEVER_SUSPENDED: Final = SuspensionReading()


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestReading:
    """State of a guest at the coordinator of its device; None if unknown.

    Attributes:
        duty: share of the time in which it works, 0 to 1.
        memory: device memory in use in bytes.
        frozen: whether its processes are frozen now.
        open: whether its gate is open now.
        suspension: its suspensions in turns.
    """

    run_id: str
    duty: float | None = None
    memory: int | None = None
    frozen: bool = False
    open: bool | None = None
    suspension: SuspensionReading = NEVER_SUSPENDED

    def to_json(self) -> dict[str, Any]:
        """Return the state without the run ID, for storage."""
        return {
            "duty": self.duty,
            "memory": self.memory,
            "frozen": self.frozen,
            "open": self.open,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyReading:
    """State of the coordinator of a device with guests (``scheduling.runs.models.SharedDevice``).

    Attributes:
        holder_run_id: the run that holds the device.
        suspension: its suspensions in turns.
    """

    holder_run_id: str
    baseline: float | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    open: float | None = None
    account: float | None = None
    reserve: float | None = None
    closings: int = 0
    delay_seconds: float = 0.0
    memory_free: int | None = None
    guests: tuple[GuestReading, ...] = ()
    suspension: SuspensionReading = NEVER_SUSPENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """Current load of a device; None if unknown.

    Attributes:
        utilisation: share of the last interval in which it was busy, 0 to 1.
        memory_bytes: memory in use.
        temperature: degrees Celsius.
        power: watts.
        uuid: identity of a GPU, whose index is that of the driver; empty for a CPU slot.
        company: state of its coordinator; None without guests.
    """

    index: int
    uuid: str = ""
    utilisation: float | None = None
    memory_bytes: int | None = None
    temperature: float | None = None
    power: float | None = None
    company: CompanyReading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """Current load of a node.

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
    """Requested container of a run.

    Attributes:
        image: reference of the image.
        gpus: UUIDs of the GPUs to hand in, or their indices where the node knows no UUIDs; empty
            on a node without GPUs.
        gpu_access: how the node's engine gives GPUs to a container, one of ``GPU_ACCESSES``.
        labels: labels of the container; all begin with ``tessera.``.
        login: ``user:password`` for the image's registry; empty if none. Only the engine gets it.
        tenant: owner of cached images; used if the registry does not respond.
        local_images: prefixes of images that the node has from no registry.
        mirrors: mirror of each registry that has one, by host.
        settings: settings of the role for its container.
    """

    image: str
    gpus: tuple[str, ...] = ()
    gpu_access: str = BY_DEVICE_REQUEST
    labels: dict[str, str] = field(default_factory=dict)
    login: str = field(default="", repr=False)
    tenant: str = ""
    local_images: tuple[str, ...] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    settings: ContainerSettings = NO_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSaved:
    """Location of a job's last reported checkpoint.

    Attributes:
        node_id, node: the node's row and name.
    """

    node_id: int
    node: str
    step: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """All inputs for preparing one run on its node.

    Attributes:
        run: the run; ``source_archive`` in it names ``archive`` by its digest.
        secrets: values by name, for files that only the job can read.
        archive: the uploaded source on the control plane's disk.
        container: the container to create; None for a plain process.
        last: the job's last checkpoint if it is on another node; None if there is nothing to
            copy.
    """

    run: RunSpec
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    archive: Path | None = None
    container: Container | None = None
    last: LastSaved | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint of a job on a node, by its manifest.

    Attributes:
        name: name of its directory.
        sha256: hash of its state; ``size`` is the size of the state in bytes.
    """

    name: str
    step: int
    sha256: str
    size: int


NodeEvent: TypeAlias = RunStatus | Grew


class Transport(Protocol):
    """The connection to one node. Every method may raise ``UnreachableNodeError``."""

    @property
    def clock(self) -> NodeClock | None:
        """The node's clock against ``time.monotonic``; None until the node reports its time."""

    @property
    def heard_at(self) -> float | None:
        """Instant of the last received bytes, by ``time.monotonic``; None without a session."""

    async def open(self) -> NodeHello:
        """Connect, install the node's part, and exchange greetings."""

    async def close(self) -> None:
        """Disconnect. Runs on the node continue."""

    async def replace_key(self, new: SshKey, *, old: Sequence[str]) -> None:
        """Let the node accept only the new key of the control plane; idempotent.

        The new key is added, checked by a sign-in, and only then the old ones are removed.

        Args:
            new: the new key.
            old: public keys that the node may still accept.

        Raises:
            RefusedError: the keys of the account cannot be changed, or the new key is not
                accepted; the old keys remain.
        """

    async def probe(self) -> Inventory:
        """Return the node's inventory."""

    async def storages(self, sources: Sequence[str]) -> list[StorageProbe]:
        """Return the probe of each source of a storage."""

    async def telemetry(self) -> NodeLoad:
        """Return the current load."""

    async def prepare(self, preparation: Preparation) -> None:
        """Prepare a run; repeated calls change nothing.

        Raises:
            PrepareError: the preparation failed, with the class of the failure.
        """

    async def go(self, run_id: str) -> RunStatus:
        """Start a prepared run exactly once, even if called repeatedly; returns its status.

        Raises:
            RefusedError: the run is not prepared, or its process could not be executed.
        """

    async def cancel(self, run_id: str) -> None:
        """Remove a prepared run; no error if it does not exist.

        Raises:
            RefusedError: the run has started (code ``already-started``).
        """

    async def stop(self, run_id: str, *, grace_seconds: float, reason: str) -> None:
        """Request the end of a run: notice, grace period, kill. Returns at once.

        Raises:
            RefusedError: the run does not exist.
        """

    async def tune(self, run_id: str, settings: Mapping[str, Any]) -> None:
        """Send a running job its complete training settings (see ``tessera.train.control``).

        Raises:
            RefusedError: the run is not active, or the node cannot write.
        """

    async def share(self, run_id: str, number: int, devices: Sequence[DeviceOrder]) -> None:
        """Send a running holder the guests of all its devices that have some.

        Args:
            run_id: the holder's run.
            number: increases with each change; a node ignores an order that is not newer.
            devices: the orders; a device that is missing has no guests.

        Raises:
            RefusedError: the run is not active, or the node cannot write.
        """

    async def runs(self) -> list[RunStatus]:
        """Return every run directory on the node."""

    async def renew(self, run_ids: Sequence[str], seconds: float) -> frozenset[str]:
        """Set a new deadline for runs; returns those for which the node has confirmed it."""

    async def read(self, run_id: str, stream: str, *, offset: int, limit: int) -> Chunk:
        """Return a piece of a run's ``log`` or ``reports``.

        Raises:
            RefusedError: the run does not exist.
        """

    async def saved(self, installation: str, job_id: str, *, before: str = "") -> Saved | None:
        """Return the newest checkpoint of a job here; its state is not verified.

        Args:
            installation: installation of the job.
            job_id: ID of the job.
            before: the name of a checkpoint: only older ones count.
        """

    async def read_saved(self, installation: str, job_id: str, *, name: str, offset: int) -> bytes:
        """Return the next piece of a checkpoint's state; empty at its end.

        Raises:
            RefusedError: the checkpoint cannot be read.
        """

    async def put_saved(
        self, installation: str, job_id: str, saved: Saved, pieces: AsyncIterator[bytes]
    ) -> None:
        """Create a checkpoint of a job here from its state, verified by its hash.

        Raises:
            RefusedError: the state is incomplete, or cannot be written.
        """

    async def remove(self, run_id: str) -> None:
        """Delete a run that has ended; no error if it does not exist.

        Raises:
            RefusedError: the run has not ended.
        """

    def events(self) -> AsyncIterator[NodeEvent]:
        """Yield events of the node, the newest of each run; raises when the connection breaks."""
