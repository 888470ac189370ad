"""What a policy sees and says: the frozen values of one virtual cluster's plan.

Production rounds and the simulator build the same values. What a live round does not know yet
keeps its default, so that a view of 10,000 jobs costs no more than the facts that are in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.reasons import Reason

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class JobPhase(StrEnum):
    """How a policy sees a job's state."""

    QUEUED = "queued"
    RUNNING = "running"
    LEAVING = "leaving"


class Event(StrEnum):
    """What called for this plan."""

    ARRIVAL = "arrival"
    COMPLETION = "completion"
    NODE = "node"
    TICK = "tick"
    RECLAIM = "reclaim"


class Kind(StrEnum):
    """How a job can be run on more or fewer devices."""

    RIGID = "rigid"
    ELASTIC = "elastic"
    ADAPTIVE = "adaptive"


class Step(StrEnum):
    """Which sizes between a job's smallest and largest are possible."""

    ANY = "any"
    POWER_OF_TWO = "pow2"
    MULTIPLE = "multiple"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``n`` devices of one ``type``, held together within cells of ``level`` (None: anywhere)."""

    n: int
    type: str | None
    level: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of each device instead of the whole.

    Attributes:
        fraction: of the device's time, in (0, 1].
        memory_cap: bytes per device; None: whatever is free.
        perf: 0 (suspended) to 100 (unthrottled).
        group: jobs of one group share the same devices.
    """

    fraction: float
    memory_cap: int | None = None
    perf: int = 100
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alloc:
    """How much a job gets in a round. Most have one part; a mix of types has several.

    Attributes:
        batch: total batch size in samples; None: the job chooses.
        share: None: whole devices.
        layout: how the job lies on what it gets, in the policy's own terms (logical workers by
            device, devices by virtual node); None: left to the driver.
    """

    parts: tuple[Part, ...]
    batch: int | None = None
    share: Share | None = None
    layout: tuple[int, ...] | None = None

    @property
    def devices(self) -> int:
        """All devices of the allocation."""
        return sum(part.n for part in self.parts)

    @property
    def single(self) -> Part:
        """The only part of an allocation that mixes no types.

        Raises:
            ValueError: it has several parts.
        """
        (part,) = self.parts
        return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes at which a job can run.

    Attributes:
        quantum: devices of one replica; sizes are its multiples with ``Step.MULTIPLE``.
    """

    minimum: int
    maximum: int
    step: Step = Step.ANY
    quantum: int = 1

    def allows(self, devices: int) -> bool:
        """Whether the job can run on so many devices."""
        if not self.minimum <= devices <= self.maximum:
            return False
        if self.step is Step.POWER_OF_TWO:
            return devices & (devices - 1) == 0
        return self.step is Step.ANY or devices % self.quantum == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the owner has declared besides the gang; never changes while the job lives.

    Attributes:
        scale: None: exactly the gang that was asked for.
        deadline: seconds since the epoch.
        estimate: declared run time in seconds at the requested size.
        application: jobs of one application behave alike (recurring runs of one program).
        batch: requested total batch size.
        max_batch: largest total batch size that the owner allows.
        max_local_batch: samples that one device holds at once.
        total_steps: after which the training is done, in steps of the initial batch.
        logical_workers: how many train, whatever the devices; None: it has none.
    """

    tenant: int = 0
    weight: float = 1.0
    tier: str = ""
    kind: Kind = Kind.RIGID
    scale: Scale | None = None
    deadline: float | None = None
    estimate: float | None = None
    application: str | None = None
    batch: int | None = None
    max_batch: int | None = None
    max_local_batch: int | None = None
    total_steps: int | None = None
    logical_workers: int | None = None
    preemptible: bool = True
    shareable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """A size at which a job was slower than at a smaller one, to which it goes back."""

    type: str
    devices: int
    back_type: str
    back_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What has been seen of a job so far.

    Attributes:
        executed: seconds during which it held devices.
        gpu_seconds: device-seconds attained.
        by_type: device-seconds by type.
        last_run: when it last held devices; None: never.
        last_queued: when it last began to wait; None: at its submission.
        restarts: how often it was started again or moved.
        recovering: it holds devices but is still busy with a restart.
        steps_done: in steps of the initial batch size.
        steps_left: None: nobody knows.
        losses: the tail of (step, training loss).
        step_time: seconds; None: not measured.
        util: of its devices, 0 to 1.
        memory_peak: bytes per device.
        slower: sizes that have made it slower; the driver gives it none of them again.
    """

    executed: float = 0.0
    gpu_seconds: float = 0.0
    by_type: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    last_run: float | None = None
    last_queued: float | None = None
    restarts: int = 0
    recovering: bool = False
    steps_done: float = 0.0
    steps_left: float | None = None
    losses: tuple[tuple[float, float], ...] = ()
    step_time: float | None = None
    util: float | None = None
    memory_peak: int | None = None
    slower: tuple[Slower, ...] = ()


PLAIN_TERMS: Final = Terms()
NO_FACTS: Final = Facts()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyJob:
    """A job as a policy sees it: facts only, nothing physical.

    Attributes:
        id: breaks every tie.
        owner: the person, by number.
        priority: -1 for opportunistic jobs, else 0 to 1000.
        submitted: seconds since the epoch.
        demand: the gang it wants.
        phase: waiting, running or leaving.
        since: when the phase began, seconds since the epoch.
        alloc: what it holds now.
        asked: the gang as an allocation, where the driver has it at hand; None: ``demand`` says.
    """

    id: int
    owner: int
    priority: int
    job_class: JobClass
    submitted: float
    demand: Demand
    phase: JobPhase
    since: float
    alloc: Alloc | None = None
    terms: Terms = PLAIN_TERMS
    facts: Facts = NO_FACTS
    asked: Alloc | None = None

    @property
    def gang(self) -> int:
        """The devices that were asked for."""
        return self.demand.devices

    @property
    def types(self) -> tuple[str, ...]:
        """Types that will do for every member, the best first; empty: any."""
        return self.demand.members[0].device_types

    def allows(self, devices: int) -> bool:
        """Whether the job can run on so many devices."""
        scale = self.terms.scale
        return devices == self.gang if scale is None else scale.allows(devices)

    @property
    def least(self) -> int:
        """The smallest size that the job can run at; its gang where no other is allowed."""
        scale = self.terms.scale
        sizes = range(scale.minimum, scale.maximum + 1) if scale is not None else ()
        return next((devices for devices in sizes if self.allows(devices)), self.gang)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeInfo:
    """What is known of a device type.

    Attributes:
        nodes: nodes of this type in the virtual view.
        node_devices: devices of each.
        most_nodes: nodes over which one job may be spread; None: all.
        memory: bytes per device; None: not known.
        price: cost of a device-hour, in any unit.
        speed: relative to a reference type.
    """

    nodes: int = 1
    node_devices: int = 1
    most_nodes: int | None = None
    memory: int | None = None
    price: float = 1.0
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A virtual cluster's own view, never a physical one.

    Attributes:
        capacity: guaranteed devices by type.
        borrow: devices that may be borrowed now, by type.
        types: what is known of each type.
        cells: free cells by type, for each level from the smallest up.
    """

    capacity: Mapping[str, int]
    borrow: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    types: Mapping[str, TypeInfo] = field(default_factory=lambda: _NOTHING)
    cells: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _NOTHING)

    @property
    def devices(self) -> int:
        """All guaranteed devices."""
        return sum(self.capacity.values())

    def room(self, device_type: str) -> int:
        """Guaranteed and borrowable devices of a type."""
        return self.capacity.get(device_type, 0) + self.borrow.get(device_type, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant's standing inside a pool.

    Attributes:
        usage: device-seconds received, decayed as the policy's driver sees fit.
        parent: the tenant above it in the tree, if any.
    """

    id: int
    weight: float = 1.0
    usage: float = 0.0
    guarantee: float | None = None
    ceiling: float | None = None
    parent: int | None = None


class Shape(NamedTuple):
    """A size as the performance models know it: devices of one type spread over nodes."""

    type: str
    nodes: int
    devices: int


class Model(Protocol):
    """The only source of performance; no policy knows what is behind it."""

    def goodputs(
        self,
        jobs: Sequence[PolicyJob],
        shapes: Sequence[Shape],
        *,
        within_request: bool = False,
    ) -> "Floats":
        """Predicted useful steps per second, at the best batch, shape ``(jobs, shapes)``.

        A step is one of the initial batch size. 0: cannot run so; nan: nothing is known.

        Args:
            jobs: one row each.
            shapes: one column each.
            within_request: total batches up to the requested one only.
        """
        ...

    def replica(self, job: PolicyJob, device_type: str) -> int:
        """Devices of one replica on a type: more than one for a job that is a pipeline."""
        ...

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Steps per second at a total batch size (None: the requested one); 0: cannot run so."""
        ...

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """Throughput on one device (or one replica's devices) of a type, to compare types."""
        ...

    def profiled(self, job: PolicyJob) -> Mapping[str, int]:
        """The most devices on which it has been seen to run, by type; empty before its start."""
        ...

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """The most devices of a type that its batch limits let it use."""
        ...

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        """What a start, a move or a change of size costs."""
        ...

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Both jobs' rates on shared devices, relative to having them alone."""
        ...


class LinearModel:
    """What can be said before anything is measured: twice the devices, twice the speed."""

    def __init__(self, types: Mapping[str, TypeInfo] = _NOTHING) -> None:
        self._types = types

    def goodputs(
        self,
        jobs: Sequence[PolicyJob],
        shapes: Sequence[Shape],
        *,
        within_request: bool = False,
    ) -> "Floats":
        """Devices times the type's speed, for every job alike."""
        import numpy as np  # noqa: PLC0415  the portal's processes need no arrays

        row = [shape.devices * self._speed(shape.type) for shape in shapes]
        return np.tile(np.array(row, dtype=np.float64), (len(jobs), 1))

    def replica(self, job: PolicyJob, device_type: str) -> int:
        """One device."""
        return 1

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Devices times the type's speed."""
        return shape.devices * self._speed(shape.type)

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """The type's speed."""
        return self._speed(device_type)

    def profiled(self, job: PolicyJob) -> Mapping[str, int]:
        """What it holds now."""
        parts = job.alloc.parts if job.alloc else ()
        return {part.type: part.n for part in parts if part.type is not None}

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """The largest size that was declared."""
        return job.terms.scale.maximum if job.terms.scale else job.gang

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        """Half a minute."""
        return 30.0

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Half the device each."""
        return 0.5, 0.5

    def _speed(self, device_type: str) -> float:
        info = self._types.get(device_type)
        return 1.0 if info is None else info.speed


LINEAR: Final[Model] = LinearModel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one virtual cluster's policy may know: its private view at one instant.

    Attributes:
        now: seconds since the epoch.
        round_seconds: the interval between two rounds.
        seed: the only chance that a policy may use.
        pool: what there is to give.
        jobs: all that wait, run or leave in this virtual cluster, by id.
        model: what is known of the jobs' performance.
    """

    now: float
    round_seconds: float
    round_number: int
    seed: int
    pool: Pool
    jobs: tuple[PolicyJob, ...]
    event: Event = Event.TICK
    tenants: tuple[Tenant, ...] = ()
    model: Model = LINEAR

    @property
    def capacity(self) -> Mapping[str, int]:
        """Guaranteed devices by type."""
        return self.pool.capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What the policy keeps for a waiting job: ``n`` devices of ``type`` from ``time`` on."""

    time: float
    n: int
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A desired state, not a list of commands: a job without an allocation is not to run.

    Attributes:
        allocs: by job; running jobs that are to go on are in it too.
        order: in which the placement is tried, first come first.
        strict: a job that cannot be placed holds back those after it.
        offer: waiting jobs in ``order`` are tried as long as they fit, so that their allocations
            together may exceed the capacity; without it all of ``allocs`` is meant.
        reject: jobs that are refused for good.
        hold: reservations for jobs that cannot start yet.
        wake: the next instant at which the policy wants to be asked, seconds since the epoch.
        why: one line for each job that the policy itself lets wait.
        notes: what the policy says of itself (a bound on its gap, how many were tried).
    """

    allocs: Mapping[int, Alloc]
    order: tuple[int, ...]
    strict: bool = False
    offer: bool = False
    reject: Mapping[int, Reason] = field(default_factory=lambda: _NOTHING)
    hold: Mapping[int, Reservation] = field(default_factory=lambda: _NOTHING)
    wake: float | None = None
    why: Mapping[int, str] = field(default_factory=lambda: _NOTHING)
    notes: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
