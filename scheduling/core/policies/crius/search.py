"""Devices for a job that does not fit: halving jobs, and moving them to other types.

Algorithm 1 of Crius (EuroSys '26) searches breadth first to a limited depth, and its artefact
repeats earlier states at each level. Here each state is expanded once, the ``BEAM`` states with
the greatest value pass to the next level, and the search starts at each type of the new job.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from scheduling.core.policies.crius.moves import Assignment
from scheduling.core.policies.crius.options import JobOptions, Slot

BEAM: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A state of the search.

    Attributes:
        request: devices for the new job.
        gain: change of the other jobs' total value.
        free: free devices by type, before the new job.
        changes: new size of each changed job.
    """

    request: Slot
    gain: float
    free: Mapping[str, int]
    changes: Mapping[int, Slot]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRoom:
    """Room for a job: its devices, the changes of others, and the change of the total value."""

    slot: Slot
    gain: float
    changes: Mapping[int, Slot]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomSearch:
    """Search for the changes with the greatest total value.

    Attributes:
        depth: maximum number of changes.
        scaling: whether jobs may be halved.
        exchange: whether jobs may move to another type.
        beam: maximum number of states that a level passes on.
    """

    depth: int
    scaling: bool = True
    exchange: bool = True
    beam: int = BEAM

    def outcome(self, books: Assignment, new: JobOptions) -> FoundRoom | None:
        """Return the best room for a new job, possibly without changes, or None."""
        best: FoundRoom | None = None
        starts = new.asked if self.exchange else new.asked[:1]
        level = [Node(request=s, gain=0.0, free=books.free, changes={}) for s in starts]
        seen = {_key(node) for node in level}
        for step in range(self.depth + 1):
            further: list[Node] = []
            for node in level:
                if node.free[node.request.type] >= node.request.devices:
                    best = _better(best, node, new)
                elif step < self.depth:
                    for child in self._children(books, new, node):
                        if (key := _key(child)) not in seen:
                            seen.add(key)
                            further.append(child)
            further.sort(key=lambda node: _rank(node, new))
            level = further[: self.beam]
        return best

    def _children(self, books: Assignment, new: JobOptions, node: Node) -> Iterator[Node]:
        for kind in sorted(node.free):
            sizes = _sizes(books, node, kind)
            if self.scaling and sizes:
                most = max(sizes)
                large = [n for n in sizes if n > 1 and 2 * n >= most]
                halves = ((Slot(kind, n), Slot(kind, n // 2)) for n in large)
                yield from self._best_change(books, new, node, halves)
            if self.exchange:
                moves = (
                    (Slot(kind, n), Slot(other, n))
                    for n in sizes
                    for other in sorted(node.free)
                    if other != kind and node.free[other] >= n
                )
                yield from self._best_change(books, new, node, moves)

    def _best_change(
        self,
        books: Assignment,
        new: JobOptions,
        node: Node,
        pairs: Iterable[tuple[Slot, Slot]],
    ) -> Iterator[Node]:
        """Yield the state after the change with the smallest loss; the new job's comes last."""
        best: tuple[float, int, Slot, Slot] | None = None
        for slot, target in pairs:
            for loss, job_id in _losses(books, new, node, slot, target):
                if best is None or (loss, job_id) < best[:2]:
                    best = loss, job_id, slot, target
        if best is None:
            return
        loss, job_id, slot, target = best
        if job_id == new.job.id:
            yield Node(request=target, gain=node.gain, free=node.free, changes=node.changes)
            return
        free = dict(node.free)
        free[slot.type] += slot.devices
        free[target.type] -= target.devices
        changes = {**node.changes, job_id: target}
        yield Node(request=node.request, gain=node.gain - loss, free=free, changes=changes)


def _losses(
    books: Assignment, new: JobOptions, node: Node, slot: Slot, target: Slot
) -> Iterator[tuple[float, int]]:
    """Yield loss and job of each candidate for a change between two sizes."""
    found = books.best(slot, target, node.changes)
    if found is not None:
        yield -found[0], found[1]
    for job_id, now in node.changes.items():
        values = books.options[job_id].values
        if now == slot and target in values:
            yield values[slot] - values[target], job_id
    if node.request == slot and target in new.values:
        yield new.values[slot] - new.values[target], new.job.id


def _sizes(books: Assignment, node: Node, kind: str) -> list[int]:
    """Return the sizes of a type that jobs have or the new job requests, ascending."""
    here: dict[int, int] = {}
    for slot, count in books.at.items():
        if slot.type == kind and count:
            here[slot.devices] = count
    for job_id, now in node.changes.items():
        before = books.slots[job_id]
        if before.type == kind:
            here[before.devices] -= 1
        if now.type == kind:
            here[now.devices] = here.get(now.devices, 0) + 1
    if node.request.type == kind:
        here[node.request.devices] = here.get(node.request.devices, 0) + 1
    return sorted(n for n, count in here.items() if count > 0)


def _better(best: FoundRoom | None, node: Node, new: JobOptions) -> FoundRoom:
    gain = node.gain + new.values[node.request]
    if best is not None and best.gain >= gain:
        return best
    return FoundRoom(slot=node.request, gain=gain, changes=node.changes)


def _rank(node: Node, new: JobOptions) -> tuple[object, ...]:
    return (-node.gain - new.values[node.request], node.request, sorted(node.changes.items()))


def _key(node: Node) -> tuple[Slot, frozenset[tuple[int, Slot]]]:
    return node.request, frozenset(node.changes.items())
