"""The device pool of a virtual cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeInfo:
    """Known facts of a device type.

    Attributes:
        nodes: nodes of this type in the virtual view.
        node_devices: devices of each.
        most_nodes: nodes over which one job may be spread; None: all.
        memory: bytes per device; None: unknown.
        price: cost of a device-hour, in any unit.
        speed: relative to a reference type, or to the mean of all compared types.
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
