"""The performance model of the jobs: the only source of performance for policies."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from scheduling.core.policy_interface.jobs import PolicyJob
from scheduling.core.policy_interface.pools import TypeInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class Shape(NamedTuple):
    """A size as the performance models know it: devices of one type spread over nodes."""

    type: str
    nodes: int
    devices: int


class Model(Protocol):
    """The interface of performance models; policies do not know the implementation."""

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
        """Maximum measured devices, by type; empty before its start."""
        ...

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """Maximum devices of a type by its batch limits."""
        ...

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        """Cost of a start, a move or a change of size."""
        ...

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Both jobs' rates on shared devices, relative to having them alone."""
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
        """Current number of devices by type."""
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
