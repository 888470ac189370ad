"""Levels of a machine between node and GPU: sockets, NUMA nodes, NVLink domains, PCIe switches."""

from __future__ import annotations

import os
from typing import Hashable, List, Optional, Sequence, Tuple

from tessera.node import system

_NESTED = ("socket", "numa", "nvlink", "pcie", "switch")
"""Levels between node and GPU, from the largest cells to the smallest; some machines differ."""


def nested_levels(
    pairs: Sequence[Tuple[int, int]],
    numa: Optional[Sequence[int]],
    nvlink: Sequence[int],
    switches: Optional[Sequence[int]] = None,
) -> Tuple[List[str], List[List[int]]]:
    """Return the levels between node and GPU, and the number of each GPU's cell by level.

    NVLink domains, NUMA nodes and PCIe switches are levels if they divide the GPUs otherwise than
    the sockets and the PCIe groups do. Where a domain and PCIe groups overlap without one
    containing the other, the domain is the level, since it is faster.

    Args:
        pairs: socket and PCIe group of each GPU.
        numa: NUMA node of each GPU; None if unknown.
        nvlink: NVLink domain of each GPU, or -1.
        switches: PCIe switch of each GPU; None if unknown.
    """
    groupings = {
        "socket": _parts([socket for socket, _ in pairs]),
        "pcie": _parts([group for _, group in pairs]),
    }
    if switches is not None and _parts(switches) != groupings["pcie"]:
        groupings["switch"] = _parts(switches)
    if len(set(nvlink)) > 1:  # else there is no link at all, or one domain, which is the node
        alone = len(nvlink)
        links = _parts([d if d >= 0 else alone + place for place, d in enumerate(nvlink)])
        equal = [name for name, cells in groupings.items() if cells == links]
        for name in equal:
            del groupings[name]
        groupings["+".join(sorted([*equal, "nvlink"], key=_NESTED.index))] = links
    if numa is not None and _parts(numa) not in groupings.values():
        groupings["numa"] = _parts(numa)
    kept: List[str] = []
    for name in sorted(groupings, key=lambda name: ("nvlink" not in name, name == "numa")):
        if all(_nest(groupings[name], groupings[other]) for other in kept):
            kept.append(name)
    kept.sort(key=lambda name: (len(set(groupings[name])), _NESTED.index(name.split("+")[0])))
    return kept, [list(path) for path in zip(*(groupings[name] for name in kept))]  # noqa: B905


def _parts(labels: Sequence[Hashable]) -> List[int]:
    """Return for each label the place of the first equal one."""
    return [list(labels).index(label) for label in labels]


def _nest(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether each group of one grouping is inside a group of the other."""
    both = len(set(zip(one, other)))  # noqa: B905 - strict came with Python 3.10
    return both in (len(set(one)), len(set(other)))


def switch_groups(addresses: Sequence[str], machine: str = "") -> Optional[List[int]]:
    """Read the PCIe switch of each GPU from the kernel; None if no two GPUs share one.

    Below the root bridge and its port are the upstream port of a switch, a downstream port, and
    the GPU. A GPU without a switch is alone.
    """
    ports = []
    for place, address in enumerate(addresses):
        path = os.path.realpath(f"{machine}/sys/bus/pci/devices/{address}").split("/")
        root = next((at for at, part in enumerate(path) if part.startswith("pci")), len(path))
        ports.append(tuple(path[root : root + 3]) if len(path) - root > 4 else (str(place),))
    groups = _parts(ports)
    return groups if len(set(groups)) < len(groups) else None


def numa_nodes(addresses: Sequence[str], machine: str = "") -> Optional[List[int]]:
    """Read the NUMA node of each GPU from the kernel; None if one is unknown."""
    texts = [
        system.read_text(f"{machine}/sys/bus/pci/devices/{address}/numa_node").strip()
        for address in addresses
    ]
    return [int(text) for text in texts] if texts and all(map(str.isdigit, texts)) else None
