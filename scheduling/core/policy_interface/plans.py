"""One virtual cluster at one instant, and what its policy wants of it."""

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
    """What one virtual cluster's policy may know: its private view at one instant.

    Attributes:
        now: seconds since the epoch.
        round_seconds: the interval between two rounds.
        seed: the only chance that a policy may use.
        pool: what there is to give.
        jobs: all that wait, run or leave in this virtual cluster, by id.
        model: what is known of the jobs' performance.
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
    """What the policy keeps for a waiting job: ``n`` devices of ``type`` from ``time`` on."""

    time: float
    n: int
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A desired state, not a list of commands: a job without an allocation is not to run.

    Attributes:
        allocs: by job; running jobs that are to go on are in it too.
        order: in which the placement is tried, first come first.
        strict: a job that cannot be placed holds back those after it.
        offer: waiting jobs in ``order`` are tried as long as they fit, so that their allocations
            together may exceed the capacity; without it all of ``allocs`` is meant.
        reject: jobs that are refused for good.
        hold: reservations for jobs that cannot start yet.
        wake: the next instant at which the policy wants to be asked, seconds since the epoch.
        why: one line for each job that the policy itself lets wait, best a ``Sentence``.
        notes: what the policy says of itself (a bound on its gap, how many were tried).
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
