"""The artefact's baselines: first come, first served, and ElasticFlow with loose deadlines."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.reproductions.crius.devices import Span, Table
from benchmarks.reproductions.crius.jobs import INFEASIBLE, Job, Judge, Queues

MOST_DEVICES = 16


@dataclass(slots=True, kw_only=True)
class Fifo:
    """First come, first served by type: each job gets the requested type and number.

    Attributes:
        relaxed: whether a job may be spread over more nodes than it needs.
    """

    judge: Judge
    queues: Queues
    relaxed: bool = False

    def decide(self, ended: Sequence[Job], arrived: Sequence[Job]) -> None:
        """Free the devices of ended jobs, start waiting ones, then new ones."""
        queues = self.queues
        if ended:
            queues.free(ended)
            blocked: set[str] = set()
            for job in list(queues.pending):
                if job.kind in blocked:
                    continue
                table = self._fitted(job)
                if table is None:
                    blocked.add(job.kind)
                    continue
                queues.pending.remove(job)
                queues.start(job, table)
        for job in arrived:
            if self._speed(job, job.shape) is None:
                queues.dropped[job] = "it cannot run on the devices that it asks for"
                continue
            table = None if queues.waits_for(job.kind) else self._fitted(job)
            if table is None:
                queues.pending.append(job)
            else:
                queues.start(job, table)

    def end_round(self, now: float) -> None:
        """Do nothing: no job is given up."""

    def _speed(self, job: Job, span: Span) -> float | None:
        return self.judge.times.samples(job.model, job.batch, span)

    def _fitted(self, job: Job) -> Table | None:
        """Return the occupants with a job on the emptiest nodes, or None if it does not fit."""
        queues = self.queues
        span = queues.table.layout.best(job.kind, job.shape.devices)
        while span.each >= 1 and self._speed(job, span) is not None:
            table = queues.table.copy()
            nodes = [
                node for node in table.layout.nodes[job.kind] if table.free(node) >= span.each
            ]
            if len(nodes) >= span.nodes:
                nodes.sort(key=table.free, reverse=True)
                table.place(job.index, span.devices, nodes[: span.nodes])
                return table
            if not self.relaxed:
                return None
            span = Span(span.type, span.nodes * 2, span.each // 2)
        return None


@dataclass(slots=True, kw_only=True)
class ElasticFlow:
    """ElasticFlow: the smallest sizes that meet all deadlines, then the largest gains.

    It decides on records of the database without their factors for other shapes and models, and
    on the memory of data parallelism.
    """

    judge: Judge
    queues: Queues

    def decide(self, ended: Sequence[Job], arrived: Sequence[Job]) -> None:
        """Free the devices of ended jobs, start waiting ones, then new ones."""
        queues = self.queues
        if ended:
            queues.free(ended)
            blocked: set[str] = set()
            for job in list(queues.pending):
                if job.kind in blocked:
                    continue
                if self._started(job):
                    queues.pending.remove(job)
                else:
                    blocked.add(job.kind)
        for job in arrived:
            if not self._started(job):
                queues.pending.append(job)

    def end_round(self, now: float) -> None:
        """Do nothing: deadlines are loose."""

    def _started(self, job: Job) -> bool:
        """Admit a job and divide the devices of its type again, or return False."""
        others = [other for other in self.queues.running if other.kind == job.kind]
        least = {other: self._least(other) for other in (job, *others)}
        sizes = {other: size for other, size in least.items() if size is not None}
        room = len(self.queues.table.layout.nodes[job.kind])
        room *= self.queues.table.layout.room[job.kind]
        if len(sizes) < len(least) or sum(sizes.values()) > room:
            return False
        self._grow(sizes, room - sum(sizes.values()))
        table = self.queues.table.copy()
        for other in others:
            table.clear(other.index)
        _pack(table, job.kind, sizes)
        self.queues.start(job, table)
        return True

    def _speed(self, job: Job, devices: int) -> float | None:
        times = self.judge.times
        if not times.fits_memory(job.model, job.batch, job.kind, devices):
            return None
        span = self.queues.table.layout.best(job.kind, devices)
        return times.bare_samples(job.model, job.batch, span)

    def _least(self, job: Job) -> int | None:
        """Return the smallest size that a job can run at; its deadline is always met."""
        devices = 1
        while devices <= MOST_DEVICES:
            if self._speed(job, devices) is not None:
                return devices
            devices *= 2
        return None

    def _grow(self, sizes: dict[Job, int], left: int) -> None:
        """Double the job with the largest gain until no job can be doubled."""
        while left > 0:
            best, most = None, INFEASIBLE
            for job, size in sizes.items():
                if size > left or size >= MOST_DEVICES:
                    continue
                more, less = self._speed(job, 2 * size), self._speed(job, size)
                before = INFEASIBLE if less is None else less
                gain = INFEASIBLE if more is None else more - before
                if gain > most:
                    best, most = job, gain
            if best is None:
                return
            left -= sizes[best]
            sizes[best] *= 2


def _pack(table: Table, kind: str, sizes: dict[Job, int]) -> None:
    """Place jobs on the first nodes of a type, the largest first."""
    room = table.layout.room[kind]
    queue = sorted(sizes, key=lambda job: -sizes[job])
    nodes = list(table.layout.nodes[kind])
    while queue and sizes[queue[0]] > room:
        job = queue.pop(0)
        count = sizes[job] // room
        table.place(job.index, sizes[job], nodes[:count])
        del nodes[:count]
    for node in nodes:
        for job in list(queue):
            if sizes[job] <= table.free(node) and table.place(job.index, sizes[job], [node]):
                queue.remove(job)
