"""A job in the view of a policy, and its possible allocations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.policy_interface.grids import GridTable, grid_types

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class JobPhase(StrEnum):
    """State of a job in the view of a policy."""

    QUEUED = "queued"
    RUNNING = "running"
    LEAVING = "leaving"


class Event(StrEnum):
    """Trigger of this plan."""

    ARRIVAL = "arrival"
    COMPLETION = "completion"
    NODE = "node"
    TICK = "tick"
    RECLAIM = "reclaim"


class Kind(StrEnum):
    """Elasticity of a job: how it runs on more or fewer devices."""

    RIGID = "rigid"
    ELASTIC = "elastic"
    ADAPTIVE = "adaptive"


class Step(StrEnum):
    """Possible sizes between a job's smallest and largest."""

    ANY = "any"
    POWER_OF_TWO = "pow2"
    MULTIPLE = "multiple"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A number ``n`` of devices of one ``type`` within cells of ``level`` (None for any).

    Attributes:
        executors: processes that share each of the devices; None if the driver decides.
    """

    n: int
    type: str | None
    level: str | None = None
    executors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A fraction of each device instead of complete devices.

    Attributes:
        fraction: fraction of the device's time, in (0, 1].
        memory_cap: maximum bytes per device; None for all free memory.
        perf: performance limit, 0 (suspended) to 100 (unthrottled).
        group: jobs of one group share the same devices.
        turn_seconds: seconds after which the next job of the group gets the devices; 0: all run
            at the same time.
    """

    fraction: float
    memory_cap: int | None = None
    perf: int = 100
    group: str | None = None
    turn_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alloc:
    """Devices of a job in a round. Most have one part; a mix of types has several.

    Attributes:
        batch: total batch size in samples; None if the job chooses.
        one_node: whether all its devices must be on one node.
        share: fraction of each device; None for complete devices.
        layout: layout of the job on its devices, in terms of the policy (logical workers by
            device, devices by virtual node); None if the driver decides.
    """

    parts: tuple[Part, ...]
    batch: int | None = None
    one_node: bool = False
    share: Share | None = None
    layout: tuple[int, ...] | None = None

    @property
    def devices(self) -> int:
        """All devices of the allocation."""
        return sum(part.n for part in self.parts)

    @property
    def sizes(self) -> tuple[tuple[int, str | None], ...]:
        """Devices and type of each part: all that a job must restart for to have otherwise."""
        return tuple((part.n, part.type) for part in self.parts)

    @property
    def single(self) -> Part:
        """The only part of an allocation with one device type.

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
        """Return whether the job can run on a number of devices."""
        if not self.minimum <= devices <= self.maximum:
            return False
        if self.step is Step.POWER_OF_TWO:
            return devices & (devices - 1) == 0
        return self.step is Step.ANY or devices % self.quantum == 0

    def largest(self, most: int) -> int | None:
        """Return the largest size up to ``most`` devices, or None if the smallest is larger."""
        sizes = range(min(most, self.maximum), self.minimum - 1, -1)
        return next((devices for devices in sizes if self.allows(devices)), None)

    @property
    def smallest(self) -> int | None:
        """The smallest size, or None if the bounds allow none."""
        sizes = range(self.minimum, self.maximum + 1)
        return next((devices for devices in sizes if self.allows(devices)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The owner's declarations besides the gang; constant while the job lives.

    Attributes:
        scale: possible sizes; None for exactly the requested gang.
        deadline: time in seconds since the epoch.
        estimate: declared run time in seconds at the requested size.
        application: name that recurring runs of one program share; they behave alike.
        batch: requested total batch size.
        max_batch: largest total batch size that the owner allows.
        max_local_batch: maximum samples on one device at once.
        total_steps: length of the training, in steps of the initial batch.
        logical_workers: number of training workers, independent of devices; None if not used.
        executors: maximum number of processes that may share a device.
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
    executors: int = 1
    preemptible: bool = True
    shareable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """A size at which a job was slower than at a smaller one, to which it reverts."""

    type: str
    devices: int
    back_type: str
    back_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Observed facts of a job so far.

    Attributes:
        executed: time with devices, in seconds.
        gpu_seconds: attained service in device-seconds.
        by_type: device-seconds by type.
        last_run: time at which it last held devices; None if never.
        last_queued: time at which it last began to wait; None for its submission.
        restarts: number of further starts and moves.
        recovering: whether it holds devices but is still restarting.
        steps_done: completed steps, in steps of the initial batch size.
        steps_left: remaining steps; None if unknown.
        losses: newest pairs of (step, training loss).
        step_time: duration of a step in seconds; None if not measured.
        util: utilisation of its devices, 0 to 1.
        memory_peak: peak memory in bytes per device.
        skew: size of its largest parameter tensor relative to all parameters, above 0 to 1; None
            if not reported.
        slower: sizes that have slowed it down; the driver does not use them again.
        executors: processes that share each of its devices; 0 for unequal numbers.
        sharing: by type, the speed of one of n processes on a device relative to one alone;
            all are measured but the last, which is extrapolated (``core.performance.executors``).
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
    skew: float | None = None
    slower: tuple[Slower, ...] = ()
    executors: int = 1
    sharing: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: _NOTHING)


PLAIN_TERMS: Final = Terms()
NO_FACTS: Final = Facts()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyJob:
    """A job in the view of a policy: facts only, nothing physical.

    Attributes:
        id: breaks every tie.
        owner: ID of its owner.
        priority: -1 for opportunistic jobs, else 0 to 1000.
        submitted: seconds since the epoch.
        demand: the requested gang.
        phase: waiting, running or leaving.
        since: when the phase began, seconds since the epoch.
        alloc: its current allocation.
        asked: the gang as an allocation, or None before the driver computes it from ``demand``.
        grids: the best grid of each shape of a hybrid job; empty for other jobs. Performance
            models read it, so most policies do not need it.
        beside: ID of the job whose device it shares; 0 if it holds its own devices.
        pace: measured pace on a shared device, as a fraction of its pace alone; None before.
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
    grids: GridTable = ()
    beside: int = 0
    pace: float | None = None

    @property
    def gang(self) -> int:
        """The requested devices."""
        return self.demand.devices

    @property
    def types(self) -> tuple[str, ...]:
        """Types usable by every member, in order of preference; empty for any."""
        return self.demand.members[0].device_types

    def types_at(self, devices: int) -> tuple[str, ...]:
        """Return the types usable with a number of devices, in order of preference; empty for any.

        A hybrid job needs a grid there, except if it has none with this number of devices at all.
        """
        able = grid_types(self.grids, devices) if self.grids else ()
        return tuple(kind for kind in self.types or able if kind in able) if able else self.types

    def allows(self, devices: int) -> bool:
        """Return whether the job can run on a number of devices.

        A hybrid job needs a grid; only its requested size is allowed without one.
        """
        scale = self.terms.scale
        if devices == self.gang or scale is None:
            return devices == self.gang and (scale is None or scale.allows(devices))
        return scale.allows(devices) and (
            not self.grids or any(row.devices == devices for row in self.grids)
        )

    def cut(self, alloc: Alloc, most: int) -> Alloc | None:
        """Reduce ``alloc`` to ``most`` devices, or return None if the job has no such small size.

        Mixes of types and shares of devices are not cut.
        """
        if alloc.devices <= most:
            return alloc
        scale = self.terms.scale
        if scale is None or len(alloc.parts) != 1 or alloc.share is not None:
            return None
        if self.grids:
            sizes = (row.devices for row in self.grids if row.type == alloc.single.type)
            size = max((n for n in sizes if n <= most and scale.allows(n)), default=None)
        else:
            size = scale.largest(most)
        if size is None:
            return None
        return Alloc(parts=(replace(alloc.single, n=size, executors=None),))

    @property
    def least(self) -> int:
        """The smallest size that the job can run at; its gang where no other is allowed."""
        if self.grids:
            return min(
                (row.devices for row in self.grids if self.allows(row.devices)), default=self.gang
            )
        scale = self.terms.scale
        return (scale.smallest if scale is not None else None) or self.gang
