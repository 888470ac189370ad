"""Upgrades of running jobs: another type, or twice the devices (algorithm 1 of the paper)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.reproductions.crius.devices import Span, Table
from benchmarks.reproductions.crius.jobs import Job, Judge, Request
from benchmarks.reproductions.crius.moving import Mover, Placed

MOST_DEVICES = 16


class _Option(NamedTuple):
    """A possible upgrade.

    Attributes:
        bound: the largest gain that any shape of this size has.
        order: rank among equal gains: the running job's place, then the artefact's order.
    """

    bound: float
    order: tuple[int, int]
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrades:
    """The search for the best single upgrade.

    Attributes:
        scaling: whether jobs may get twice their devices.
        types: whether jobs may move to another type.
    """

    judge: Judge
    mover: Mover
    scaling: bool = True
    types: bool = True

    def best(self, jobs: Sequence[Job], table: Table, passes: int) -> Placed | None:
        """Return the upgrade with the largest gain in samples/s, or None without any gain.

        Of equal gains, the earlier job's wins. Options whose bound is below the best gain so far
        are not tried: their search changes nothing.
        """
        options = [
            option
            for place, job in enumerate(jobs)
            for option in self._options(place, job, table)
            if option.bound > 0.0
        ]
        options.sort(key=lambda option: (-option.bound, option.order))
        best: Placed | None = None
        key = (0.0, (0, 0))
        for option in options:
            if best is not None and (-option.bound, option.order) > key:
                break
            placed = self._tried(option.request, table, passes)
            if placed is None:
                continue
            rank = (-placed.gain, option.order)
            if placed.gain > 0.0 and (best is None or rank < key):
                best, key = placed, rank
        return best

    def _options(self, place: int, job: Job, table: Table) -> Iterator[_Option]:
        """Yield the upgrades of a job that have enough idle devices without it."""
        shape = job.shape
        wanted: list[Request] = []
        if self.types:
            wanted += [
                Request(job, kind, shape.devices)
                for kind in table.layout.search
                if kind != shape.type and table.free_of(kind) >= shape.devices
            ]
        if self.scaling and shape.devices < MOST_DEVICES:
            double = 2 * shape.devices
            if table.free_of(shape.type) + shape.devices >= double:
                wanted.append(Request(job, shape.type, double))
        for rank, request in enumerate(wanted):
            best = table.layout.best(request.kind, request.devices)
            yield _Option(self._bound(request, best), (place, rank), request)

    def _bound(self, request: Request, best: Span) -> float:
        """Return the largest gain over all localities."""
        spans = [
            Span(best.type, best.nodes << halvings, best.each >> halvings)
            for halvings in range(best.each.bit_length())
        ]
        return max(self.judge.gain(request, span, request.job.shape) for span in spans)

    def _tried(self, request: Request, table: Table, passes: int) -> Placed | None:
        """Search for the devices of an upgrade; return None if there are none."""
        job = request.job
        trial = table.copy()
        trial.clear(job.index)
        placed = self.mover.search(request, trial, passes)
        span = placed.table.span(job.index)
        if not placed.found or span is None:
            return None
        return placed._replace(gain=self.judge.gain(request, span, job.shape))
