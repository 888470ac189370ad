"""First in, first out, with priorities: the order of arrival inside each priority.

With ``backfill`` (the default) smaller jobs pass a job that does not fit, as in HiveD under a
default pod queue; without it the queue's head blocks all jobs behind it, so that a large gang is
never starved by small jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from scheduling.core.messages import sentence
from scheduling.core.policies.base import Need, rigid_alloc
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import JobPhase, Plan, Snapshot


class Arrived(Protocol):
    """A job in the order of arrival."""

    @property
    def id(self) -> int:
        """Breaks ties."""

    @property
    def priority(self) -> int:
        """The higher comes first."""

    @property
    def submitted(self) -> float:
        """Seconds since the epoch."""


J = TypeVar("J", bound=Arrived)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Higher priority first, then the earlier submit, then the smaller id.

    Attributes:
        backfill: jobs may pass a head that does not fit.
    """

    backfill: bool = parameter(True, sentence("param-backfill"))

    name: ClassVar[str] = "fifo"
    aliases: ClassVar[tuple[str, ...]] = ("fcfs",)
    summary: ClassVar[str] = "priority, then arrival; backfill lets smaller jobs pass"
    needs: ClassVar[frozenset[Need]] = frozenset()
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Leave running jobs alone, and try all waiting ones in order."""
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
        """This policy's whole order of waiting jobs, independent of other facts."""
        return sorted(waiting, key=lambda job: (-job.priority, job.submitted, job.id))
