"""Devices of the simulated cluster, and which job occupies each.

The artefact decides on single devices: their order inside a node breaks ties between jobs, and a
job that only changes devices inside its nodes counts as restarted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scheduling.core.workloads.clusters import SimCluster

IDLE: Final = -1
#: Ids from here on are fillers: they occupy idle devices while one job is moved.
FILLER: Final = 1_000_000_000


class Span(NamedTuple):
    """Devices of one type in one shape.

    Attributes:
        each: devices on each node.
    """

    type: str
    nodes: int
    each: int

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.each


@dataclass(frozen=True, slots=True)
class Layout:
    """Nodes of all types in order; each has consecutive devices.

    Attributes:
        kinds: device type of each node.
        starts: first device of each node, and the end of the last one.
        nodes: node numbers by type.
        room: devices of a node, by type.
        search: types in the order in which the artefact tries them.
    """

    kinds: tuple[str, ...]
    starts: tuple[int, ...]
    nodes: dict[str, range]
    room: dict[str, int]
    search: tuple[str, ...]

    def best(self, kind: str, devices: int) -> Span:
        """Return the tightest shape: one node, or complete nodes."""
        room = self.room[kind]
        return Span(kind, 1, devices) if devices <= room else Span(kind, devices // room, room)

    def slots(self, node: int) -> range:
        """Return the devices of a node."""
        return range(self.starts[node], self.starts[node + 1])


def layout_of(cluster: SimCluster, search: Sequence[str]) -> Layout:
    """Number the nodes of a cluster.

    Args:
        cluster: the types in order.
        search: the artefact's order of trials; other types of the cluster follow.
    """
    kinds: list[str] = []
    starts = [0]
    nodes: dict[str, range] = {}
    for kind, group in cluster.groups.items():
        nodes[kind] = range(len(kinds), len(kinds) + group.nodes)
        for _node in range(group.nodes):
            kinds.append(kind)
            starts.append(starts[-1] + group.devices)
    known = [kind for kind in search if kind in nodes]
    return Layout(
        kinds=tuple(kinds),
        starts=tuple(starts),
        nodes=nodes,
        room={kind: group.devices for kind, group in cluster.groups.items()},
        search=(*known, *(kind for kind in nodes if kind not in known)),
    )


class Table:
    """The occupant of each device.

    A device is idle, used by a job, or offered: idle for others, though its opportunistic job has
    not left it yet.
    """

    __slots__ = ("_free", "_held", "layout", "owner")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        #: A job's id; IDLE; or, for an offered device, the number below IDLE that names its job.
        self.owner = [IDLE] * layout.starts[-1]
        self._free = [layout.room[kind] for kind in layout.kinds]
        #: Devices of each job by node, in the order of nodes; offered ones count.
        self._held: dict[int, dict[int, int]] = {}

    def copy(self) -> "Table":
        """Return an independent copy."""
        other = Table.__new__(Table)
        other.layout = self.layout
        other.owner = self.owner[:]
        other._free = self._free[:]
        other._held = self._held.copy()
        return other

    def free(self, node: int) -> int:
        """Return the devices of a node that are idle or offered."""
        return self._free[node]

    def free_of(self, kind: str) -> int:
        """Return the devices of a type that are idle or offered."""
        nodes = self.layout.nodes[kind]
        return sum(self._free[nodes.start : nodes.stop])

    def nodes(self, job: int) -> list[int]:
        """Return the nodes with devices of a job, in order."""
        return list(self._held.get(job, ()))

    def span(self, job: int) -> Span | None:
        """Return the shape of a job's devices, or None without any."""
        held = self._held.get(job)
        if not held:
            return None
        return Span(
            self.layout.kinds[next(iter(held))], len(held), sum(held.values()) // len(held)
        )

    def is_even(self, job: int) -> bool:
        """Return whether a job has devices, equally many on each of its nodes."""
        return len(set(self._held.get(job, {}).values())) == 1

    def jobs(self) -> list[int]:
        """Return the jobs that use devices, in the order of their first device."""
        return [job for job in dict.fromkeys(self.owner) if job >= 0]

    def changed(self, before: "Table") -> list[int]:
        """Return the jobs that have a device which they did not have before."""
        if self.owner == before.owner:
            return []
        pairs = zip(self.owner, before.owner, strict=True)
        return [job for job in dict.fromkeys(a for a, b in pairs if a != b) if job >= 0]

    def clear(self, job: int) -> None:
        """Take all devices from a job."""
        for node in self._held.pop(job, ()):
            for slot in self.layout.slots(node):
                code = self.owner[slot]
                if code == job:
                    self._free[node] += 1
                    self.owner[slot] = IDLE
                elif code == _offered(job):
                    self.owner[slot] = IDLE

    def keep(self, job: int, node: int, count: int) -> None:
        """Take all but the first ``count`` devices of a node from a job."""
        slots = [slot for slot in self.layout.slots(node) if self._is_of(slot, job)]
        for slot in slots[count:]:
            self._free[node] += self.owner[slot] == job
            self.owner[slot] = IDLE
        self._set_held(job, {node: min(count, len(slots))})

    def place(self, job: int, count: int, nodes: Sequence[int]) -> bool:
        """Place a job evenly on nodes, and return whether they have room for it.

        It gets the first idle devices of each node; its other devices on these nodes are freed.
        """
        each = count // len(nodes)
        blocks: list[list[int]] = []
        for node in nodes:
            block = [
                slot
                for slot in self.layout.slots(node)
                if self.owner[slot] < 0 or self.owner[slot] == job
            ][:each]
            if len(block) < each:
                return False
            blocks.append(block)
        lost: set[int] = set()
        for node, block in zip(nodes, blocks, strict=True):
            for slot in self.layout.slots(node):
                if self._is_of(slot, job):
                    self._free[node] += self.owner[slot] == job
                    self.owner[slot] = IDLE
            for slot in block:
                if self.owner[slot] < IDLE:
                    lost.add(_job_of(self.owner[slot]))
                self.owner[slot] = job
            self._free[node] -= each
        self._set_held(job, dict.fromkeys(nodes, each))
        for other in lost:
            self._recount(other, nodes)
        return True

    def lift(self, nodes: Sequence[int]) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Take the used devices of nodes from their jobs.

        Returns:
            The devices, and the nodes, of each job in the order of its first device.
        """
        counts: dict[int, int] = {}
        places: dict[int, list[int]] = {}
        for node in nodes:
            for slot in self.layout.slots(node):
                job = self.owner[slot]
                if job < 0:
                    continue
                counts[job] = counts.get(job, 0) + 1
                if node not in places.setdefault(job, []):
                    places[job].append(node)
                self.owner[slot] = IDLE
                self._free[node] += 1
        for job, gone in places.items():
            self._recount(job, gone)
        return counts, places

    def on(self, job: int, node: int) -> int:
        """Return the devices of a job on a node, offered ones included."""
        return self._held.get(job, {}).get(node, 0)

    def offer(self, job: int) -> None:
        """Offer a job's devices to others."""
        for node in self._held.get(job, ()):
            for slot in self.layout.slots(node):
                if self.owner[slot] == job:
                    self.owner[slot] = _offered(job)
                    self._free[node] += 1

    def withdraw(self) -> None:
        """Return the offered devices that nobody took to their jobs."""
        for node in range(len(self.layout.kinds)):
            for slot in self.layout.slots(node) if self._free[node] else ():
                if self.owner[slot] < IDLE:
                    self.owner[slot] = _job_of(self.owner[slot])
                    self._free[node] -= 1

    def count(self, job: int) -> int:
        """Return the devices of a job, offered ones included."""
        return sum(self._held.get(job, {}).values())

    def swap(self, job: int, new: int, old: int) -> None:
        """Give a job the complete node ``old``, and that node's occupants the node ``new``."""
        others: set[int] = set()
        for to, back in zip(self.layout.slots(new), self.layout.slots(old), strict=True):
            others.add(self.owner[back])
            self.owner[to], self.owner[back] = self.owner[back], job
        self._free[new], self._free[old] = self._free[old], 0
        for other in {*others, job} - {IDLE}:
            self._recount(other, (new, old))

    def fill_idle(self, job: int) -> None:
        """Let only a job's own devices be idle; fillers, one per type, use the others."""
        own = set(self._held.get(job, ()))
        fillers: dict[str, dict[int, int]] = {}
        for node, kind in enumerate(self.layout.kinds):
            filler = self._filler(kind)
            for slot in self.layout.slots(node) if self._free[node] or node in own else ():
                if self.owner[slot] == IDLE:
                    self.owner[slot] = filler
                    self._free[node] -= 1
                    held = fillers.setdefault(kind, {})
                    held[node] = held.get(node, 0) + 1
                elif self.owner[slot] == job:
                    self.owner[slot] = IDLE
                    self._free[node] += 1
        self._held.pop(job, None)
        for kind, held in fillers.items():
            self._held[self._filler(kind)] = held

    def remove_fillers(self) -> bool:
        """Make the fillers' devices idle; return False if others became idle meanwhile."""
        if any(self._free):
            return False
        for kind in self.layout.nodes:
            self.clear(self._filler(kind))
        return True

    def _filler(self, kind: str) -> int:
        return FILLER + self.layout.nodes[kind].start

    def _is_of(self, slot: int, job: int) -> bool:
        return self.owner[slot] == job or self.owner[slot] == _offered(job)

    def _count(self, job: int, node: int) -> int:
        return sum(self._is_of(slot, job) for slot in self.layout.slots(node))

    def _set_held(self, job: int, counts: dict[int, int]) -> None:
        """Set a job's devices on some nodes."""
        held = {**self._held.get(job, {}), **counts}
        held = {node: held[node] for node in sorted(held) if held[node]}
        if held:
            self._held[job] = held
        else:
            self._held.pop(job, None)

    def _recount(self, job: int, nodes: Iterable[int]) -> None:
        """Count a job's devices on some nodes again."""
        self._set_held(job, {node: self._count(job, node) for node in nodes})


def _offered(job: int) -> int:
    return -2 - job


def _job_of(code: int) -> int:
    return -2 - code
