"""The combinator that puts a policy of one's own choice in the place of a failing one."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

from scheduling.core.messages import sentence
from scheduling.core.policies.base import Policy
from scheduling.core.policies.combinators.base import Combinator
from scheduling.core.policies.fifo import Fifo
from scheduling.core.policies.guarding import TimeLimit, guarded_plan
from scheduling.core.policies.parameters import NO_PARAMETER, parameter
from scheduling.core.policies.queues.backfilling import Backfill
from scheduling.core.policies.queues.capacity import Capacity
from scheduling.core.policies.queues.least import ShortestService, ShortestTime
from scheduling.core.policies.queues.shares import DominantShare, FairShare
from scheduling.core.policy_interface import Plan, Snapshot

#: None of them takes long, whatever the view.
FALLBACKS: Final[Mapping[str, type[Policy]]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Fifo,
            Backfill,
            Capacity,
            DominantShare,
            FairShare,
            ShortestService,
            ShortestTime,
        )
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded(Combinator):
    """The inner policy, or ``fallback`` where it fails, is late or breaks a rule.

    Attributes:
        fallback: the name of another policy, of those that order jobs and need no time.
        limit: bounds the time of a call; created by the driver, which has the clock.
    """

    fallback: str = parameter("fifo", sentence("param-fallback"), choices=tuple(FALLBACKS))
    limit: TimeLimit = field(default=nullcontext, metadata=NO_PARAMETER)

    name: ClassVar[str] = "guarded"
    summary: ClassVar[str] = sentence("summary-guarded")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Return the inner plan if it is legal; else its notes contain the fault.

        ``instead`` in them names the policy that decides: if ``fallback`` fails too, running jobs
        are left alone and the rest is first in, first out.
        """
        plan, after, fault = guarded_plan(self.inner, snapshot, state, limit=self.limit)
        if fault is None:
            return plan, after
        fallback = FALLBACKS[self.fallback]()
        instead, _, worse = guarded_plan(fallback, snapshot, {}, limit=self.limit)
        faults = [fault] if worse is None else [fault, worse]
        told = {"faults": faults, "instead": self.fallback if worse is None else Fifo.name}
        return replace(instead, notes={**instead.notes, **told}), state
