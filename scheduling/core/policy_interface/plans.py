"""The input and the plan of one virtual cluster's policy at one instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.policy_interface.jobs import Alloc, Event, PolicyJob
from scheduling.core.policy_interface.models import LINEAR, Model
from scheduling.core.policy_interface.pools import Pool, Tenant
from scheduling.core.reasons import Reason

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The private view of one virtual cluster for its policy at one instant.

    Attributes:
        now: seconds since the epoch.
        round_seconds: the interval between two rounds.
        seed: the only source of chance for a policy.
        pool: available devices.
        jobs: all waiting, running and leaving jobs of this virtual cluster, by id.
        model: performance of the jobs.
    """

    now: float
    round_seconds: float
    round_number: int
    seed: int
    pool: Pool
    jobs: tuple[PolicyJob, ...]
    event: Event = Event.TICK
    tenants: tuple[Tenant, ...] = ()
    model: Model = LINEAR

    @property
    def capacity(self) -> Mapping[str, int]:
        """Guaranteed devices by type."""
        return self.pool.capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Reservation for a waiting job: ``n`` devices of ``type`` from ``time`` on."""

    time: float
    n: int
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A desired state, not a list of commands: a job without an allocation does not run.

    Attributes:
        allocs: by job, including running jobs that continue.
        order: of the placements.
        strict: a job that cannot be placed blocks those after it.
        offer: waiting jobs in ``order`` are tried while they fit, so that their allocations
            together may exceed the capacity; without it the plan means all of ``allocs``.
        reject: jobs that are rejected permanently.
        hold: reservations for jobs that cannot start yet.
        wake: the next instant at which the policy needs a plan, seconds since the epoch.
        why: one line for each job that the policy itself lets wait, preferably a ``Sentence``.
        notes: statistics of the policy (a bound on its gap, number of trials).
    """

    allocs: Mapping[int, Alloc]
    order: tuple[int, ...]
    strict: bool = False
    offer: bool = False
    reject: Mapping[int, Reason] = field(default_factory=lambda: _NOTHING)
    hold: Mapping[int, Reservation] = field(default_factory=lambda: _NOTHING)
    wake: float | None = None
    why: Mapping[int, str] = field(default_factory=lambda: _NOTHING)
    notes: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
