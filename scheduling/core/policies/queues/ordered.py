"""Jobs in one order: by arrival, by remaining time, or by remaining service.

First in, first out uses backfill by default: smaller jobs pass a job that does not fit, as in
HiveD with a default pod queue. Without backfill, the head of the queue blocks all jobs behind it,
so that small jobs cannot starve a large gang. Shortest remaining processing time first is optimal
for the
mean completion time on one machine (Schrage, Operations Research 1968); for gangs the service,
time multiplied by devices, takes its place (Tiresias, NSDI '19, compares with both).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Protocol, TypeVar

from scheduling.core.messages import sentence
from scheduling.core.policies.base import Need, rigid_alloc
from scheduling.core.policies.engines.greedy import sorted_policy
from scheduling.core.policies.engines.room import shape_of
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import JobPhase, Plan, PolicyJob, Snapshot


class Arrived(Protocol):
    """A job in the order of arrival."""

    @property
    def id(self) -> int:
        """The ID, which breaks ties."""

    @property
    def priority(self) -> int:
        """Jobs with a higher value come first."""

    @property
    def submitted(self) -> float:
        """Seconds since the epoch."""


J = TypeVar("J", bound=Arrived)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Runs jobs by priority; within a priority, by submit time.

    Attributes:
        backfill: jobs may pass a head that does not fit.
    """

    backfill: bool = parameter(True, sentence("param-backfill"))

    name: ClassVar[str] = "fifo"
    aliases: ClassVar[tuple[str, ...]] = ("fcfs",)
    summary: ClassVar[str] = "priority, then submit time; smaller jobs may start early (backfill)"
    needs: ClassVar[frozenset[Need]] = frozenset()
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Keep running jobs unchanged, and try all waiting jobs in order."""
        queued, leaving = JobPhase.QUEUED, JobPhase.LEAVING
        ordered = self.in_order(job for job in snapshot.jobs if job.phase is queued)
        allocs = {
            job.id: job.alloc or job.asked or rigid_alloc(job)
            for job in snapshot.jobs
            if job.phase is not leaving
        }
        plan = Plan(
            allocs=allocs,
            order=tuple(job.id for job in ordered),
            strict=not self.backfill,
            offer=True,
        )
        return plan, state

    def in_order(self, waiting: Iterable[J]) -> list[J]:
        """Return this policy's complete order of waiting jobs, independent of other facts."""
        return sorted(waiting, key=lambda job: (-job.priority, job.submitted, job.id))


def remaining_seconds(job: PolicyJob, snapshot: Snapshot) -> float:
    """Return the remaining seconds of a job at its requested size; inf if unknown.

    The remaining steps have precedence over the declared run time.
    """
    if job.facts.steps_left is not None:
        rates = [
            snapshot.model.rate(job, shape_of(snapshot, kind, job.gang))
            for kind in job.types or sorted(snapshot.capacity)
        ]
        rate = max(rates, default=0.0)
        return job.facts.steps_left / rate if rate > 0 else inf
    if job.terms.estimate is not None:
        return max(0.0, job.terms.estimate - job.facts.executed)
    return inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestTime:
    """Runs the job with the shortest remaining time first.

    Attributes:
        strict: whether a job that does not fit blocks later jobs.
    """

    strict: bool = parameter(False, sentence("param-strict-order"))

    name: ClassVar[str] = "srtf"
    aliases: ClassVar[tuple[str, ...]] = ("sjf",)
    summary: ClassVar[str] = "shortest remaining time first, with preemption"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RUNTIME})
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Serve jobs by remaining time."""
        left = {job.id: remaining_seconds(job, snapshot) for job in snapshot.jobs}
        plan = sorted_policy(
            snapshot, lambda job: (left[job.id], job.submitted), strict=self.strict
        )
        return plan, state


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestService:
    """Runs the job with the fewest remaining device-seconds first.

    Attributes:
        strict: whether a job that does not fit blocks later jobs.
    """

    strict: bool = parameter(False, sentence("param-strict-order"))

    name: ClassVar[str] = "srsf"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "shortest remaining service (time x devices) first, with preemption"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RUNTIME})
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Serve jobs by remaining service."""
        left = {job.id: remaining_seconds(job, snapshot) * job.gang for job in snapshot.jobs}
        plan = sorted_policy(
            snapshot, lambda job: (left[job.id], job.submitted), strict=self.strict
        )
        return plan, state
