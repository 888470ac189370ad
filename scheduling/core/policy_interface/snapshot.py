"""The input and the plan of one virtual cluster's policy at one instant.

The input is the pool of devices, the jobs, and their performance model: the only source of
performance for policies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from scheduling.core.policy_interface.jobs import Alloc, Event, PolicyJob
from scheduling.core.reasons import Reason

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeInfo:
    """Facts of a device type.

    Attributes:
        nodes: nodes of this type in the virtual view.
        node_devices: devices of each node.
        most_nodes: maximum nodes of one job; None for all.
        memory: bytes per device; None if unknown.
        price: cost of a device-hour, in any unit.
        speed: speed relative to a reference type, or to the mean of all compared types.
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
        types: facts of each type.
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
        """Return the guaranteed and borrowable devices of a type."""
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
    """A size in the terms of performance models: devices of one type spread over nodes."""

    type: str
    nodes: int
    devices: int


class Model(Protocol):
    """The interface of performance models; policies do not depend on the implementation."""

    def goodputs(
        self,
        jobs: Sequence[PolicyJob],
        shapes: Sequence[Shape],
        *,
        within_request: bool = False,
    ) -> "Floats":
        """Predict useful steps per second at the best batch, shape ``(jobs, shapes)``.

        A step is one of the initial batch size. 0 means impossible, and nan means unknown.

        Args:
            jobs: one row each.
            shapes: one column each.
            within_request: whether to use total batches up to the requested one only.
        """
        ...

    def replica(self, job: PolicyJob, device_type: str) -> int:
        """Return the devices of one replica on a type; more than one for a pipelined job."""
        ...

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Return steps per second at a batch size (default: as requested); 0 if impossible."""
        ...

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """Return the throughput of one device (or replica) of a type, to compare types."""
        ...

    def profiled(self, job: PolicyJob) -> Mapping[str, int]:
        """Return the maximum measured devices, by type; empty before its start."""
        ...

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """Return the maximum devices of a type by its batch limits."""
        ...

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        """Return the cost of a start, a move or a change of size."""
        ...

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Return both jobs' rates on shared devices, relative to exclusive devices."""
        ...


class LinearModel:
    """The default model without measurements: twice the devices, twice the speed."""

    def __init__(self, types: Mapping[str, TypeInfo] = _NOTHING) -> None:
        self._types = types

    def goodputs(
        self,
        jobs: Sequence[PolicyJob],
        shapes: Sequence[Shape],
        *,
        within_request: bool = False,
    ) -> "Floats":
        """Return devices times the type's speed for every job."""
        import numpy as np  # noqa: PLC0415  the portal's processes need no arrays

        row = [shape.devices * self._speed(shape.type) for shape in shapes]
        return np.tile(np.array(row, dtype=np.float64), (len(jobs), 1))

    def replica(self, job: PolicyJob, device_type: str) -> int:
        """Return 1: each replica uses one device."""
        return 1

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Return devices times the type's speed."""
        return shape.devices * self._speed(shape.type)

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """Return the type's speed."""
        return self._speed(device_type)

    def profiled(self, job: PolicyJob) -> Mapping[str, int]:
        """Return the current number of devices by type."""
        parts = job.alloc.parts if job.alloc else ()
        return {part.type: part.n for part in parts if part.type is not None}

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """Return the largest declared size."""
        return job.terms.scale.maximum if job.terms.scale else job.gang

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        """Return 30 s."""
        return 30.0

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Return half the device for each job."""
        return 0.5, 0.5

    def _speed(self, device_type: str) -> float:
        info = self._types.get(device_type)
        return 1.0 if info is None else info.speed


LINEAR: Final[Model] = LinearModel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The private view of one virtual cluster for its policy at one instant.

    Attributes:
        now: seconds since the epoch.
        round_seconds: the interval between two rounds.
        seed: the only source of randomness for a policy.
        pool: available devices.
        jobs: all waiting, running and leaving jobs of this virtual cluster, by id.
        model: performance of the jobs.
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
    """Reservation for a waiting job: ``n`` devices of ``type`` from ``time`` on."""

    time: float
    n: int
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A desired state, not a list of commands: a job without an allocation does not run.

    Attributes:
        allocs: allocations by job, including running jobs that continue.
        order: order of the placements.
        strict: a job that cannot be placed blocks those after it.
        offer: waiting jobs in ``order`` are tried while they fit, so that their allocations
            together may exceed the capacity; without it the plan means all of ``allocs``.
        reject: jobs that are rejected permanently.
        hold: reservations for jobs that cannot start yet.
        wake: the next instant at which the policy needs a plan, seconds since the epoch.
        why: one line for each job that the policy itself lets wait, preferably a ``Sentence``.
        notes: statistics of the policy (a bound on its gap, number of trials).
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
