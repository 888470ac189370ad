"""The cluster of a simulation, and the placement of jobs on its nodes.

The nodes of a type are equal and numbered from 0; a placement is the node of each device.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Final

from scheduling.core.policy_interface import TypeInfo
from scheduling.core.simulator.traces import SimulationError

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
            raise SimulationError(f"cluster: the type {name} stands there twice")
        if not nodes or not devices:
            raise SimulationError(f"cluster: {part.strip()!r} has no devices")
        groups[name] = NodeGroup(nodes=nodes, devices=devices)
    return SimCluster(groups=MappingProxyType(groups))


def pack(group: NodeGroup, sizes: Sequence[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Place all jobs again: large jobs first, on complete nodes as far as possible.

    A pointer advances from job to job, so that small jobs are spread over the nodes.

    Args:
        group: the nodes.
        sizes: pairs (job, devices); in total at most the capacity.

    Returns:
        The node of each device, by job.
    """
    free = [group.devices] * group.nodes
    placed: dict[int, tuple[int, ...]] = {}
    node = 0
    for job_id, devices in sorted(sizes, key=lambda item: -item[1]):
        nodes: list[int] = []
        whole, tried = devices // group.devices, 0
        while whole and tried < group.nodes:
            if free[node] == group.devices:
                nodes += [node] * group.devices
                free[node] = 0
                whole -= 1
            node = (node + 1) % group.nodes
            tried += 1
        while len(nodes) < devices:
            taken = min(devices - len(nodes), free[node])
            nodes += [node] * taken
            free[node] -= taken
            node = (node + 1) % group.nodes
        placed[job_id] = tuple(nodes)
    return placed


def keep(
    group: NodeGroup,
    sizes: Sequence[tuple[int, int]],
    held: Mapping[int, tuple[int, ...]],
) -> dict[int, tuple[int, ...]]:
    """Place large jobs first and leave jobs in place if no larger one took their devices.

    Args:
        group: the nodes.
        sizes: (job, devices) in order of priority; together no more than there are.
        held: the devices that jobs hold now.

    Returns:
        The devices of each job; device ``d`` is on node ``d // group.devices``.
    """
    taken: set[int] = set()
    placed: dict[int, tuple[int, ...]] = {}
    ordered = sorted(sizes, key=lambda item: -item[1])
    for _size, jobs in groupby(ordered, key=lambda item: item[1]):
        moving: list[tuple[int, int]] = []
        for job_id, devices in jobs:
            before = held.get(job_id, ())
            if len(before) == devices and taken.isdisjoint(before):
                placed[job_id] = before
                taken.update(before)
            else:
                moving.append((job_id, devices))
        for job_id, devices in moving:
            free = (device for device in range(group.total) if device not in taken)
            placed[job_id] = tuple(device for device, _ in zip(free, range(devices), strict=False))
            taken.update(placed[job_id])
    return placed


def shape_of(nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the devices per node, in the order of the nodes."""
    return tuple(len(list(run)) for _node, run in groupby(nodes))


def spread_evenly(devices: int, most_nodes: int) -> tuple[int, ...]:
    """Return the shape of devices over at most ``most_nodes`` nodes, all but the last equal."""
    each = -(-devices // most_nodes)
    whole, rest = divmod(devices, each)
    return (each,) * whole + ((rest,) if rest else ())
