"""Placement of one job by moves of others: pairs of partly used nodes are merged."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks.reproductions.crius.devices import FILLER, Span, Table
from benchmarks.reproductions.crius.jobs import INFEASIBLE, Judge, Request

#: Bounds of the artefact on passes of merging, for one search and for one phase of a round.
MOST_PASSES: Final = 256
ALL_PASSES: Final = 4096


class Placed(NamedTuple):
    """Outcome of a search for one job's devices.

    Attributes:
        found: whether the job is placed in ``table``.
        gain: change of the job's samples/s.
        relaxed: whether it is on more nodes than it needs.
        passes: remaining passes of merging in this phase.
        table: the table that the search ended with; not the given one after a refused merge.
    """

    found: bool
    gain: float
    relaxed: bool
    passes: int
    table: Table


class Mover:
    """Finds devices for a job.

    The given table is changed in place until a merge is refused; from then on the search continues
    on a copy, and the given table stays half changed. Callers that keep the given table inherit
    this state, which decides some of the artefact's later steps.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def search(self, request: Request, table: Table, passes: int, *, clear: bool = True) -> Placed:
        """Search for the shape with the best locality, then for a relaxed one.

        Args:
            request: the job, with its wanted type and number of devices.
            table: present occupants.
            passes: remaining passes of merging in this phase.
            clear: whether the job first gives back its present devices.
        """
        job = request.job.index
        before = table.span(job)
        speed = 0.0 if before is None else self._judge.gain(request, before)
        if clear:
            table.clear(job)
        placed = self._search(request, table, passes)
        return placed._replace(gain=placed.gain - speed)

    def _search(self, request: Request, table: Table, passes: int) -> Placed:
        best = table.layout.best(request.kind, request.devices)
        if not self._judge.can_run(request, best):
            return Placed(False, INFEASIBLE, False, passes, table)
        gain = self._judge.gain(request, best)
        if _placed_best(request, table, best):
            return Placed(True, gain, False, passes, table)
        most = min(passes, MOST_PASSES)
        found, table, used = _merged(request, table, best, most)
        if found:
            return Placed(True, gain, False, passes - used, table)
        loose = self._place_relaxed(request, table)
        if loose is not None:
            return Placed(True, loose, True, passes - most, table)
        return Placed(False, INFEASIBLE, False, passes, table)

    def _place_relaxed(self, request: Request, table: Table) -> float | None:
        """Place a job on more nodes than it needs, and return its samples/s, or None."""
        room = table.layout.room[request.kind]
        partly, idle = openings(table, request.kind, request.devices)
        nodes = [*idle, *partly]
        each = request.devices // 2
        while each >= 1:
            span = Span(request.kind, request.devices // each, each)
            if each <= room:
                if not self._judge.can_run(request, span):
                    return None
                fitting = [node for node in nodes if table.free(node) >= each][: span.nodes]
                if len(fitting) == span.nodes:
                    table.place(request.job.index, request.devices, fitting)
                    return self._judge.gain(request, span)
            each //= 2
        return None


def openings(table: Table, kind: str, devices: int) -> tuple[list[int], list[int]]:
    """Return the partly used nodes, most idle first, and the idle ones.

    The partly used ones end where they have enough idle devices together.
    """
    room = table.layout.room[kind]
    partly: list[int] = []
    idle: list[int] = []
    for node in table.layout.nodes[kind]:
        free = table.free(node)
        if free == room:
            idle.append(node)
        elif free:
            partly.append(node)
    partly.sort(key=table.free, reverse=True)
    total = 0
    for place, node in enumerate(partly, start=1):
        total += table.free(node)
        if total >= devices:
            return partly[:place], idle
    return partly, idle


def _placed_best(request: Request, table: Table, best: Span) -> bool:
    """Place a job on idle nodes, else on one partly used node; return whether it has room."""
    partly, idle = openings(table, request.kind, request.devices)
    if best.nodes <= len(idle):
        return table.place(request.job.index, request.devices, idle[: best.nodes])
    for node in partly:
        if request.devices <= table.free(node):
            return table.place(request.job.index, request.devices, [node])
    return False


def _merged(request: Request, table: Table, best: Span, most: int) -> tuple[bool, Table, int]:
    """Merge nodes pass by pass until the job fits, and place it.

    A state that repeats would repeat for all remaining passes, so that only the rest of its
    cycle is carried out.
    """
    nodes = table.layout.nodes[request.kind]
    part = slice(table.layout.starts[nodes.start], table.layout.starts[nodes.stop])
    seen = {tuple(table.owner[part]): 0}
    done = 0
    while done < most:
        table = _pass(table, openings(table, request.kind, request.devices)[0])
        done += 1
        if _placed_best(request, table, best):
            return True, table, done
        first = seen.setdefault(tuple(table.owner[part]), done)
        if first != done:
            most = min(most, done + (most - done) % (done - first))
    return False, table, most


def _pass(table: Table, nodes: Sequence[int]) -> Table:
    """Merge the most idle node with the least idle one, and so on inwards."""
    free = [table.free(node) for node in nodes]
    for low in range(len(nodes) // 2):
        high = len(nodes) - 1 - low
        table = merged_pair(table, (nodes[low], free[low]), (nodes[high], free[high]))
    return table


def merged_pair(table: Table, first: tuple[int, int], second: tuple[int, int]) -> Table:
    """Move the jobs of two partly used nodes so that one becomes idle or full.

    Args:
        table: changed in place, even if the merge is refused.
        first: a node and its idle devices.
        second: another one of the same type.

    Returns:
        The table; a copy from before if the merge would split a job unevenly.
    """
    before = table.copy()
    room = table.layout.room[table.layout.kinds[first[0]]]
    if first[1] + second[1] > room:
        source, target = (first[0], second[0]) if first[1] >= second[1] else (second[0], first[0])
        full = _emptied(table, before, source, target)
    else:
        full = _filled(table, before, first, second)
    return table if full else before


def _emptied(table: Table, before: Table, source: int, target: int) -> bool:
    """Move all jobs of a node to another; return False if one spans more nodes than these."""
    counts, _places = table.lift((source,))
    for job, count in counts.items():
        nodes = before.nodes(job)
        if len(nodes) > 1 and target in nodes and job < FILLER:
            return False
        if not table.place(job, count, (target,)):
            return False
    return True


def _filled(table: Table, before: Table, first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Fill one node with the jobs of two; return False if one spans more nodes than these."""
    room = table.layout.room[table.layout.kinds[first[0]]]
    counts, places = table.lift((first[0], second[0]))
    queue = sorted(counts.items(), key=lambda item: -item[1])
    home = places[queue[0][0]]
    main = (first[0] if first[1] <= second[1] else second[0]) if len(home) > 1 else home[0]
    other = second[0] if main == first[0] else first[0]
    for place, (job, count) in enumerate(queue):
        nodes = before.nodes(job)
        is_wide = len(nodes) > 2 and first[0] in nodes and second[0] in nodes
        if (is_wide and job < FILLER) or count > room:
            return False
        later = sum(each for _job, each in queue[place + 1 :])
        order = (other, main) if later >= table.free(main) else (main, other)
        if not any(table.place(job, count, (node,)) for node in order):
            return False
    return True
