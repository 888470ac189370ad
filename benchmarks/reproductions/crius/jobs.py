"""Jobs of the artefact's simulator, their queues, and the speeds of their shapes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.reproductions.crius.devices import Span, Table
from benchmarks.reproductions.crius.steptimes import StepTimes

#: Speed of a shape that cannot run, as in the artefact; it is part of the sums that decide.
INFEASIBLE = -1e9
_TUNING_PER_DEVICE = 10
_MOST_TUNING = 40


@dataclass(slots=True, eq=False)
class Job:
    """A job and its progress.

    Attributes:
        index: place in the trace.
        steps: its length; after a suspension, what was left then.
        submitted: seconds; the round that knows the job.
        deadline: seconds on the same clock.
        shape: present devices, or those that it last had or asks for.
        running: whether it holds devices.
        executed: seconds with progress.
        done: steps at the step time of their round, if the rules count so.
        left: remaining steps.
        tuning: remaining seconds of the search for a plan, which block progress.
        blocker: whether it waits while a job behind it runs.
        opportunistic: whether it started past a waiting job.
    """

    index: int
    name: str
    model: str
    batch: int
    steps: float
    submitted: float
    deadline: float
    shape: Span
    running: bool = False
    executed: float = 0.0
    done: float = 0.0
    left: float = 0.0
    tuning: float | None = None
    blocker: bool = False
    opportunistic: bool = False

    @property
    def kind(self) -> str:
        """The device type that it has or asks for."""
        return self.shape.type


@dataclass(slots=True)
class Queues:
    """State between two rounds.

    Attributes:
        table: the occupants of all devices.
        running: jobs with devices, in the order of their starts.
        pending: jobs without devices, in the order in which they began to wait.
        dropped: jobs that are never tried again, with the reason.
    """

    table: Table
    running: list[Job] = field(default_factory=list)
    pending: list[Job] = field(default_factory=list)
    dropped: dict[Job, str] = field(default_factory=dict)

    def adopt(self, table: Table) -> None:
        """Replace the occupants, and set the shapes of the running jobs."""
        self.table = table
        for job in self.running:
            span = table.span(job.index)
            if span is not None:
                job.shape = span

    def start(self, job: Job, table: Table) -> None:
        """Add a running job."""
        job.running = True
        self.running.append(job)
        self.adopt(table)

    def free(self, ended: Sequence[Job]) -> None:
        """Take the devices from ended jobs."""
        table = self.table.copy()
        for job in ended:
            table.clear(job.index)
        self.table = table

    def waits_for(self, kind: str) -> bool:
        """Return whether a pending job asks for a type."""
        return any(job.kind == kind for job in self.pending)


class Request(NamedTuple):
    """A job with the type and number of devices that it shall get."""

    job: Job
    kind: str
    devices: int


@dataclass(slots=True)
class Judge:
    """Answers whether and how fast a job runs on a shape.

    Attributes:
        filtered: whether the memory of data parallelism decides what can run.
        deadlines: whether a shape that misses the deadline counts as infeasible.
        now: present time in seconds.
    """

    times: StepTimes
    interval: float
    filtered: bool = False
    deadlines: bool = False
    now: float = 0.0

    def can_run(self, request: Request, span: Span) -> bool:
        """Return whether a shape is possible for a job."""
        job = request.job
        if self.filtered and not self.times.fits_memory(
            job.model, job.batch, span.type, span.devices
        ):
            return False
        return self._is_in_time(request, span) and (
            self.times.samples(job.model, job.batch, span) is not None
        )

    def gain(self, request: Request, new: Span, old: Span | None = None) -> float:
        """Return the change in samples/s from one shape to another.

        An impossible new shape counts as INFEASIBLE; an impossible old one as its absence.
        """
        job = request.job
        speed = self.times.samples(job.model, job.batch, new)
        if speed is None or not self._is_in_time(request, new):
            return INFEASIBLE
        if old is None:
            return speed
        before = self.times.samples(job.model, job.batch, old)
        return speed - (INFEASIBLE if before is None else before)

    def _is_in_time(self, request: Request, span: Span) -> bool:
        if not self.deadlines:
            return True
        job = request.job
        seconds = self.times.step_seconds(job.model, job.batch, span)
        if seconds is None:
            return False
        tuning = job.tuning or 0.0
        if self.now - job.submitted <= self.interval:
            tuning = min(_TUNING_PER_DEVICE * request.devices, _MOST_TUNING)
        return self.now + tuning + self.interval + int(job.left * seconds) <= job.deadline
