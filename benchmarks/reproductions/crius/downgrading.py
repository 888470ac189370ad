"""Room for a job by halving jobs or moving them to another type (algorithm 1 of the paper).

A breadth-first search of limited depth. Two properties of the artefact's search decide its plans:
a change of type restores the size that the new job asked for, and a change of type that had to
merge nodes may leave a half-changed table for the next level (see ``Mover``). The artefact's
levels repeat all earlier nodes. A repeated node gives the same plans again, and none of them can
win, so that each node is expanded once here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.reproductions.crius.devices import Span, Table
from benchmarks.reproductions.crius.jobs import INFEASIBLE, Job, Judge, Request
from benchmarks.reproductions.crius.moving import Mover, Placed


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A search state, before the new job is placed.

    Attributes:
        request: the new job with its type and size so far.
        gain: change of the samples/s of all other jobs.
        changes: each change so far, as a job and its shape after it.
    """

    table: Table
    request: Request
    gain: float
    passes: int
    changes: tuple[tuple[Job, Span], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A complete plan: the occupants with the new job, and the change in samples/s."""

    table: Table
    gain: float
    passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrades:
    """The search, with the parts that an ablation leaves out.

    Attributes:
        jobs: all jobs by index.
        scaling: whether jobs may be halved.
        types: whether jobs may move to another type.
    """

    judge: Judge
    mover: Mover
    jobs: Callable[[int], Job]
    scaling: bool = True
    types: bool = True

    def outcomes(self, request: Request, table: Table, passes: int, depth: int) -> list[Outcome]:
        """Return all plans, in the order in which they were found.

        Args:
            request: the new job.
            table: present occupants; not changed.
            passes: remaining passes of merging.
            depth: number of changes of one plan.
        """
        found: list[Outcome] = []
        level = [Node(table.copy(), request, 0.0, passes)]
        for _step in range(depth):
            further: list[Node] = []
            for node in reversed(level):
                further.extend(self._expanded(node, request, found))
            level = further
        return found

    def _expanded(self, node: Node, asked: Request, found: list[Outcome]) -> Iterator[Node]:
        """Add the plans one change away to ``found``, and yield the states that need more."""
        if self.scaling:
            for kind in node.table.layout.search:
                yield from self._judged(self._halved(node, asked, kind), found)
        if self.types:
            yield from self._judged(self._moved(node, asked), found)

    def _judged(self, step: tuple[Node, Placed] | None, found: list[Outcome]) -> Iterator[Node]:
        if step is None:
            return
        node, placed = step
        if placed.found and self._all_can_run(node.changes):
            gain = node.gain + placed.gain
            found.append(Outcome(placed.table, gain, placed.passes))
        if not placed.found or placed.relaxed:
            yield node

    def _all_can_run(self, changes: tuple[tuple[Job, Span], ...]) -> bool:
        """Return whether the changes leave no job on an impossible shape.

        A second change of the same job clears it from the list, whatever its result.
        """
        bad: list[Job] = []
        for job, span in changes:
            can_run = self.judge.can_run(Request(job, job.kind, job.shape.devices), span)
            if not can_run and job not in bad:
                bad.append(job)
            elif job in bad:
                bad.remove(job)
        return not bad

    def _halved(self, node: Node, asked: Request, kind: str) -> tuple[Node, Placed] | None:
        """Halve the job of a type that loses least, and try to place the new one."""
        table, request = node.table.copy(), node.request
        choice = self._job_to_halve(table, request, kind)
        if choice is None:
            return None
        gain, job, old, new = choice
        if job is asked.job:
            request = request._replace(devices=new.devices)
        else:
            _halve(table, job, old)
        placed = Placed(False, INFEASIBLE, False, node.passes, table)
        if kind == node.request.kind:
            placed = self.mover.search(request, table.copy(), node.passes)
            new = _span(placed.table, request if job is asked.job else _present(job))
        changes = (*node.changes, (job, new))
        return Node(table, request, node.gain + gain, node.passes, changes), placed

    def _job_to_halve(
        self, table: Table, request: Request, kind: str
    ) -> tuple[float, Job, Span, Span] | None:
        """Choose among the jobs with at least half of the largest number of devices."""
        candidates = [
            (job, span) for job, span in self._candidates(table, request) if span.type == kind
        ]
        most = max((span.devices for _job, span in candidates), default=0)
        choice: tuple[float, Job, Span, Span] | None = None
        for job, old in candidates:
            if old.devices < most // 2 or old.devices == 1:
                continue
            half = old.devices // 2
            new = Span(kind, old.nodes // 2, old.each) if old.nodes > 2 else Span(kind, 1, half)
            gain = self.judge.gain(_present(job), new, old)
            if choice is None or gain > choice[0]:
                choice = gain, job, old, new
        return choice

    def _candidates(self, table: Table, request: Request) -> list[tuple[Job, Span]]:
        """Return running jobs in the order of their devices, then the new one."""
        jobs = [self.jobs(index) for index in table.jobs()]
        spans = [(job, span) for job in jobs if (span := table.span(job.index)) is not None]
        return [*spans, (request.job, _span(table, request))]

    def _moved(self, node: Node, asked: Request) -> tuple[Node, Placed] | None:
        """Move one job of the wanted type to another type, and try to place the new one."""
        table, request = node.table.copy(), node.request
        choice = self._job_to_move(table, node, asked)
        if choice is None:
            return None
        moved, gain, passes = choice
        searched = table
        if moved.job is asked.job:
            request = moved
        else:
            searched = self.mover.search(moved, table, node.passes).table
        placed = self.mover.search(request, searched.copy(), passes)
        changes = (*node.changes, (moved.job, _span(placed.table, moved)))
        return Node(table, request, node.gain + gain, passes, changes), placed

    def _job_to_move(
        self, table: Table, node: Node, asked: Request
    ) -> tuple[Request, float, int] | None:
        """Choose a job and its new type; gains of running jobs count twice, as in the artefact.

        The new job is compared with itself only: if it can move, it is chosen over all others.
        """
        choice: tuple[Request, float, int] | None = None
        best = {False: INFEASIBLE, True: INFEASIBLE}
        for job, old in self._candidates(table, asked):
            if old.type != node.request.kind:
                continue
            for kind in table.layout.search:
                if kind == old.type or table.free_of(kind) < old.devices:
                    continue
                moved = Request(job, kind, old.devices)
                gain = self.judge.gain(moved, table.layout.best(kind, old.devices), old)
                placed = self.mover.search(moved, table.copy(), node.passes)
                is_new = job is asked.job
                total = gain if is_new else gain + placed.gain
                if placed.found and total > best[is_new]:
                    best[is_new] = total
                    choice = moved, total, node.passes if is_new else placed.passes
        return choice


def _present(job: Job) -> Request:
    return Request(job, job.kind, job.shape.devices)


def _span(table: Table, request: Request) -> Span:
    """Return the shape of a job in a table, or the requested one."""
    span = table.span(request.job.index)
    return table.layout.best(request.kind, request.devices) if span is None else span


def _halve(table: Table, job: Job, old: Span) -> None:
    """Free half of a job's devices: on its one node, or on its fullest nodes."""
    nodes = table.nodes(job.index)
    if old.nodes == 1:
        table.keep(job.index, nodes[0], old.devices // 2)
        return
    for node in sorted(nodes, key=table.free)[: old.nodes // 2]:
        table.keep(job.index, node, 0)
