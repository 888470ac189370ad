"""One job under the rules without rounds: its devices, progress and observed facts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.policy_interface import (
    NO_FACTS,
    Alloc,
    Facts,
    JobPhase,
    Kind,
    Part,
    PolicyJob,
    Scale,
    Terms,
)
from scheduling.core.simulator.traces import TraceJob

DONE: Final = 1e-6
_MOST_DEVICES: Final = 64


class Asking:
    """Demands of jobs: those that ask for the same share one."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[str, ...], int | None], tuple[Demand, Alloc]] = {}

    def of(self, job: TraceJob) -> tuple[Demand, Alloc]:
        """A job's demand, and the allocation that meets it."""
        key = job.devices, job.types, job.batch
        if key not in self._known:
            member = MemberDemand(
                role="worker",
                count=job.devices,
                devices=1,
                device_types=job.types,
                within=Within.RACK,
            )
            part = Part(
                n=job.devices,
                type=job.types[0] if job.types else None,
                level=Within.RACK.value,
            )
            self._known[key] = Demand(members=(member,)), Alloc(parts=(part,), batch=job.batch)
        return self._known[key]


class EventJob:
    """One job; its remaining work is counted in seconds of one device of its best type.

    Attributes:
        seconds: its run time at its requested size, by type.
        left: remaining work.
        rate: of it, done per second.
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
        """Be complete at ``now``."""
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
        """The policy's view of it, with all observations so far."""
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
        """Speed on a type, relative to the best one; 0: it cannot run there."""
        seconds = self.seconds.get(device_type)
        if seconds is None:
            return 0.0
        return min(self.seconds.values()) / seconds if seconds else 1.0

    def _rate(self, alloc: Alloc) -> float:
        total = sum(part.n * self.speed(part.type or "") for part in alloc.parts)
        return total * (alloc.share.fraction if alloc.share else 1.0)


def waiting_view(
    index: int, job: TraceJob, tenant: int, asking: Asking, estimate: float | None
) -> PolicyJob:
    """The policy's view of a job before its first start."""
    demand, asked = asking.of(job)
    scale = None
    if job.kind is not Kind.RIGID:
        scale = job.scale or Scale(minimum=1, maximum=max(_MOST_DEVICES, job.devices))
    return PolicyJob(
        id=index,
        owner=0,
        priority=job.priority,
        job_class=JobClass.GUARANTEED,
        submitted=job.submitted,
        demand=demand,
        phase=JobPhase.QUEUED,
        since=job.submitted,
        terms=Terms(
            tenant=tenant,
            kind=job.kind,
            scale=scale,
            deadline=job.deadline,
            estimate=estimate,
            application=job.application or None,
            batch=job.batch,
        ),
        facts=NO_FACTS,
        asked=asked,
    )


def why_never(
    job: TraceJob, seconds: Mapping[str, float], capacity: Mapping[str, int]
) -> str | None:
    """The reason why a job can never run even alone, in words; None: it can.

    Args:
        job: with its demand.
        seconds: its run time by type.
        capacity: all devices that it could use, by type.
    """
    if not seconds:
        return "nothing was measured of it on these types"
    kinds = [kind for kind in job.types or capacity if kind in capacity]
    if not kinds:
        return f"there is no {' or '.join(job.types)[:60]} in the cluster"
    least = 1 if job.kind is not Kind.RIGID else job.devices
    most = max(capacity[kind] for kind in kinds)
    if least > most:
        return f"asks for {job.devices} devices, of which there are {most} of one type"
    return None
