"""One job under the rules without rounds: its devices, progress and observed facts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from scheduling.core.policy_interface import (
    Alloc,
    Facts,
    JobPhase,
    LinearModel,
    PolicyJob,
    Shape,
    TypeInfo,
)
from scheduling.core.simulator.traces import TraceJob

DONE: Final = 1e-6


class EventJob:
    """One job; its remaining work is counted in seconds of one device of its best type.

    Attributes:
        seconds: its run time at its requested size, by type.
        left: remaining work.
        rate: work done per second.
        view: the policy's last view.
        version: increases with each change of its devices.
    """

    __slots__ = (
        "_declared",
        "_work",
        "alloc",
        "countdown",
        "devices",
        "executed",
        "failures",
        "finished",
        "gpu_seconds",
        "index",
        "job",
        "last_queued",
        "last_run",
        "left",
        "lost",
        "mark",
        "rate",
        "refused",
        "seconds",
        "started",
        "starts",
        "trained",
        "version",
        "view",
    )

    def __init__(
        self,
        index: int,
        job: TraceJob,
        seconds: Mapping[str, float],
        view: PolicyJob,
        declared: float,
    ) -> None:
        self.index = index
        self.job = job
        self.seconds = seconds
        self.view = view
        best = min(seconds.values(), default=0.0)
        self._work = best * job.devices
        self._declared = declared
        self.left = self._work
        self.alloc: Alloc | None = None
        self.devices = 0
        self.rate = 0.0
        self.mark = job.submitted
        self.countdown = self.executed = self.gpu_seconds = self.trained = self.lost = 0.0
        self.starts = self.failures = self.version = 0
        self.started: float | None = None
        self.finished: float | None = None
        self.last_run: float | None = None
        self.last_queued: float | None = None
        self.refused: str | None = None

    @property
    def end(self) -> float:
        """Completion time if nothing changes; it must hold devices."""
        return self.mark + self.countdown + self.left / self.rate

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

    def run(self, to: float) -> None:
        """Bring everything up to the instant ``to``."""
        seconds = to - self.mark
        self.mark = to
        if not self.devices:
            return
        waited = min(self.countdown, seconds)
        self.countdown -= waited
        self.left -= (seconds - waited) * self.rate
        self.trained += seconds - waited
        self.executed += seconds
        self.gpu_seconds += seconds * self.devices
        self.last_run = to

    def finish(self, now: float) -> None:
        """Complete the job at ``now``."""
        self.run(now)
        self.left, self.finished = 0.0, now
        self.alloc, self.devices, self.rate = None, 0, 0.0

    def place(self, alloc: Alloc | None, now: float, restart: float) -> None:
        """Hold ``alloc`` from now on, which is another one than so far."""
        self.run(now)
        self.alloc, self.trained = alloc, 0.0
        self.version += 1
        if alloc is None:
            self.devices, self.rate = 0, 0.0
            self.last_queued = now
        else:
            self.devices, self.rate = alloc.devices, self._rate(alloc)
            self.countdown = restart if self.starts else 0.0
            self.starts += 1
            self.started = now if self.started is None else self.started
        self.view = replace(
            self.view,
            phase=JobPhase.QUEUED if alloc is None else JobPhase.RUNNING,
            alloc=alloc,
            since=now,
        )

    def fail(self, now: float, checkpoint: float) -> None:
        """Lose the work after the last checkpoint, with the devices still held."""
        self.run(now)
        self.failures += 1
        if checkpoint > 0.0:
            again = self.trained % checkpoint * self.rate
            self.left += again
            self.lost += again

    def with_facts(self, *, size_aware: bool) -> PolicyJob:
        """Build the policy's view of the job, with all observations so far."""
        if not self.starts and not size_aware:
            return self.view
        done = self._work - self.left
        left = max(0.0, self._work * self._declared - done) if size_aware else None
        facts = Facts(
            executed=self.executed,
            gpu_seconds=self.gpu_seconds,
            last_run=self.last_run,
            last_queued=self.last_queued,
            restarts=self.restarts,
            recovering=self.countdown > DONE,
            steps_done=done,
            steps_left=left if not left or left > DONE else DONE,
        )
        self.view = replace(self.view, facts=facts)
        return self.view

    def speed(self, device_type: str) -> float:
        """Return the speed on a type relative to the best one; 0 if it cannot run there."""
        seconds = self.seconds.get(device_type)
        if seconds is None:
            return 0.0
        return min(self.seconds.values()) / seconds if seconds else 1.0

    def _rate(self, alloc: Alloc) -> float:
        total = sum(part.n * self.speed(part.type or "") for part in alloc.parts)
        return total * (alloc.share.fraction if alloc.share else 1.0)


class EventModel(LinearModel):
    """Linear speeds; with an oracle also the slowdown of a job on each type."""

    def __init__(
        self, types: Mapping[str, TypeInfo], jobs: "list[EventJob] | None", restart: float
    ) -> None:
        super().__init__(types)
        self._jobs = jobs
        self._restart = restart

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        """Restart cost under these conditions."""
        return self._restart

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """Return the speed relative to the best type, as far as rates are available."""
        return 1.0 if self._jobs is None else self._jobs[job.id].speed(device_type)

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Return the devices times the job's speed on their type."""
        return shape.devices * self.speed(job, shape.type)

    def goodputs(
        self,
        jobs: "Any",
        shapes: "Any",
        *,
        within_request: bool = False,
    ) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return devices times speed for every job."""
        rows = [[self.rate(job, shape) for shape in shapes] for job in jobs]
        return np.array(rows, dtype=np.float64).reshape(len(jobs), len(shapes))
