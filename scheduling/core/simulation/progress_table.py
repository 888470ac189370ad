"""Progress of the live jobs of a simulation, and the events at which they end or leave."""

from collections.abc import Callable

from scheduling.core.jobspec import Demand
from scheduling.core.simulation.events import EventClock, EventKind
from scheduling.core.simulation.facts import while_running
from scheduling.core.simulation.jobs import JobProgress, Overhead
from scheduling.core.simulation.speedup import HeldShape
from scheduling.core.values import JobFacts, QueuedJob

Remaining = Callable[[int], float]
"""Remaining seconds of a job at its requested size; called once, when it first holds devices."""


class ProgressTable:
    """The progress of all jobs that run or have run.

    Args:
        clock: gets the events of the jobs.
        remaining: remaining work of a job.
        overhead: costs of a job's starts and failures, by job ID.
        steps: steps in a second of a job's work at the requested size; None: jobs report none.
    """

    def __init__(
        self,
        clock: EventClock,
        remaining: Remaining,
        overhead: Callable[[int], Overhead],
        steps: Callable[[int], float] | None,
    ) -> None:
        self._clock, self._remaining = clock, remaining
        self._overhead, self._steps = overhead, steps
        self._progress: dict[int, JobProgress] = {}

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._progress

    def done(self, job_id: int) -> float:
        """Return the seconds that a job has run here, as if at the requested size."""
        job = self._progress.get(job_id)
        return 0.0 if job is None else job.progress(self._clock.now)

    def is_version(self, job_id: int, version: int) -> bool:
        """Return whether an event was made for the present run of a job."""
        job = self._progress.get(job_id)
        return job is not None and job.version == version

    def began(self, job_id: int) -> float:
        """Return the start of the progress of the current run of a job."""
        return self._progress[job_id].began

    def job(self, job_id: int) -> QueuedJob:
        """Return a job as it was queued."""
        return self._progress[job_id].job

    def take_over(self, job: QueuedJob, rate: float) -> None:
        """Begin with a job that runs at the start of the simulation."""
        now = self._clock.now
        left = max(self._remaining(job.id), 0.0)
        progress = JobProgress(job=job, left=left, since=now, observed=now, observed_left=left)
        self._progress[job.id] = progress
        progress.begin(now, rate, 0.0)

    def begin(self, job: QueuedJob, rate: float, wait: float) -> bool:
        """Start a run after ``wait`` and the job's own delays; return whether it is a restart."""
        now, overhead = self._clock.now, self._overhead(job.id)
        delay = wait + overhead.start
        progress = self._progress.get(job.id)
        is_restart = progress is not None
        if progress is None:
            left = max(self._remaining(job.id), 0.0)
            progress = JobProgress(job=job, left=left, since=now, observed_left=left)
            self._progress[job.id] = progress
        else:
            delay += overhead.restart
        progress.begin(now, rate, delay)
        progress.observed = now + overhead.start
        self.await_end(job.id)
        return is_restart

    def set_pace(self, job_id: int, pace: float) -> None:
        """Let a running job make progress at a part of its full speed, unless it is leaving."""
        progress = self._progress[job_id]
        if progress.full and progress.set_pace(self._clock.now, pace):
            self.await_end(job_id)

    def await_end(self, job_id: int) -> None:
        """Request the event at which a running job is complete."""
        job = self._progress[job_id]
        if job.rate > 0.0:
            self._clock.add(job.end, EventKind.END, job_id, job.version)

    def stop(self, job_id: int, grace: float) -> None:
        """End the progress of a job, which leaves after ``grace`` seconds."""
        progress = self._progress[job_id]
        progress.stop(self._clock.now)
        self._clock.add(self._clock.now + grace, EventKind.LEAVE, job_id, progress.version)

    def fail(self, job_id: int) -> float:
        """End a run without notice; return the lost progress since the last checkpoint."""
        return self._progress[job_id].fail(self._clock.now, self._overhead(job_id).checkpoint)

    def repeat(self, job_id: int, lost: float) -> None:
        """Let the next run repeat seconds of work at the requested size."""
        progress = self._progress[job_id]
        progress.left += lost
        progress.done -= lost

    def requeue(self, job: QueuedJob) -> None:
        """Replace a job as it was queued, with other times and nodes."""
        self._progress[job.id].job = job

    def leave(self, job_id: int) -> None:
        """End a run: its events are no longer current."""
        self._progress[job_id].version += 1

    def end(self, job_id: int) -> None:
        """Forget a job that is complete."""
        self._progress.pop(job_id, None)

    def facts(
        self, job_id: int, known: JobFacts | None, shape: HeldShape, asked: Demand
    ) -> JobFacts:
        """Return the facts of a running job.

        Args:
            job_id: the job.
            known: the facts so far.
            shape: its devices.
            asked: the requested gang.
        """
        progress, now = self._progress[job_id], self._clock.now
        progress.advance(now)
        steps = None if self._steps is None else self._steps(job_id)
        return while_running(known, progress, shape, asked, now=now, steps=steps)
