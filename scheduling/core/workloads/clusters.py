"""The cluster of a simulation: groups of equal nodes by device type."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from scheduling.core.policy_interface import TypeInfo
from scheduling.core.workloads.traces import SimulationError

_GROUP: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):([0-9]{1,6})x([0-9]{1,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """A number of equal nodes with ``devices`` devices each."""

    nodes: int
    devices: int

    @property
    def total(self) -> int:
        """Devices of the group."""
        return self.nodes * self.devices


@dataclass(frozen=True, slots=True)
class SimCluster:
    """Groups of nodes by device type, in the order in which they were given."""

    groups: Mapping[str, NodeGroup]

    @property
    def types(self) -> tuple[str, ...]:
        """The device types in order."""
        return tuple(self.groups)

    @property
    def devices(self) -> int:
        """All devices."""
        return sum(group.total for group in self.groups.values())

    @property
    def capacity(self) -> Mapping[str, int]:
        """Devices by type."""
        return MappingProxyType({name: group.total for name, group in self.groups.items()})

    @property
    def infos(self) -> Mapping[str, TypeInfo]:
        """Facts of each type for a policy."""
        return MappingProxyType(
            {
                name: TypeInfo(nodes=group.nodes, node_devices=group.devices)
                for name, group in self.groups.items()
            }
        )

    def packed(self, device_type: str, devices: int) -> tuple[int, ...]:
        """Return the tightest shape of a number of devices: complete nodes, then the rest."""
        whole, rest = divmod(devices, self.groups[device_type].devices)
        return (self.groups[device_type].devices,) * whole + ((rest,) if rest else ())


def read_cluster(text: str) -> SimCluster:
    """Parse a cluster from a text such as ``aws:6x4,rtx:3x8``.

    Raises:
        SimulationError: the text is malformed; the message shows the malformed part.
    """
    groups: dict[str, NodeGroup] = {}
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if match is None:
            raise SimulationError(
                f"cluster: {part.strip()!r} is not of the form type:NODESxDEVICES, as in aws:6x4"
            )
        name, nodes, devices = match[1], int(match[2]), int(match[3])
        if name in groups:
            raise SimulationError(f"cluster: the type {name} is given twice")
        if not nodes or not devices:
            raise SimulationError(f"cluster: {part.strip()!r} has no devices")
        groups[name] = NodeGroup(nodes=nodes, devices=devices)
    return SimCluster(groups=MappingProxyType(groups))
