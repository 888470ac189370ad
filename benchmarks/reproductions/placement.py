"""Placement of jobs on the nodes of a type.

The nodes are equal and numbered from 0; a placement is the node of each device.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from scheduling.core.workloads.clusters import NodeGroup


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
