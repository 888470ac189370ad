"""Profile jobs of elastic jobs in simulated traces, as live jobs have them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.policy_interface import Kind, Terms
from scheduling.core.simulation.workload_jobs import WorkloadJob
from scheduling.core.values import JobFacts, QueuedJob, Timed

MOST_PROFILED: Final = 4
"""Maximum number of device types on which a job is profiled, as live."""
_PROFILED_STEPS: Final = 1_000


class ProfileJobs:
    """Jobs that measure the speed of elastic jobs on one device of each type.

    They are opportunistic, and their IDs follow those of the trace. Hybrid jobs need none, since
    their rates are given.

    Args:
        jobs: the jobs of the trace; refused ones are not profiled.
        seconds: duration of each profile; None for no profiles.
    """

    def __init__(self, jobs: Sequence[WorkloadJob], seconds: float | None) -> None:
        self.seconds = seconds or 0.0
        self.first = len(jobs) + 1
        pairs = [
            (job, kind)
            for job in jobs
            if seconds and job.refused is None and not job.grids
            if job.job.kind is not Kind.RIGID
            for kind in _types_of(job)[:MOST_PROFILED]
        ]
        self._measured = dict(enumerate(pairs, start=self.first))
        self._due = set(self._measured)

    def arrivals(self) -> list[tuple[QueuedJob, JobFacts]]:
        """Return the profile jobs, which are submitted together with their jobs."""
        return [
            (
                replace(
                    job.queued,
                    id=number,
                    job_class=JobClass.OPPORTUNISTIC,
                    demand=_one_device(kind),
                ),
                JobFacts(terms=Terms(tenant=job.queued.tenant), asked=_one_device(kind)),
            )
            for number, (job, kind) in self._measured.items()
        ]

    def ended(self, ends: Mapping[int, float]) -> list[tuple[int, tuple[Timed, ...]]]:
        """Return the results of new ends: the profiled job, and its steps."""
        new = sorted(self._due & ends.keys())
        self._due.difference_update(new)
        return [
            (self._measured[number][0].queued.id, (_measured(*self._measured[number]),))
            for number in new
        ]


def _types_of(job: WorkloadJob) -> tuple[str, ...]:
    allowed = job.queued.demand.members[0].device_types
    return tuple(kind for kind in sorted(job.seconds) if not allowed or kind in allowed)


def _one_device(kind: str) -> Demand:
    member = MemberDemand(role="worker", count=1, devices=1, device_types=(kind,))
    return Demand(members=(member,))


def _measured(job: WorkloadJob, kind: str) -> Timed:
    """Return exact steps of a job on one device, in the steps that it reports in its runs."""
    rate = job.steps_per_second * job.speed((kind,)) / max(job.job.devices, 1)
    return Timed(
        type=kind,
        nodes=1,
        devices=1,
        batch=job.job.batch or 1,
        accumulation=1,
        steps=_PROFILED_STEPS,
        seconds=_PROFILED_STEPS / rate,
    )
