"""The base of policy rules: a policy around another one, with the inner one's state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from scheduling.core.policies.base import Need, Policy, label_of
from scheduling.core.policies.parameters import NO_PARAMETER
from scheduling.core.policy_interface import Plan, Snapshot

_ALL_NEEDS: Final[frozenset[Need]] = frozenset(Need)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combinator:
    """A policy rule around another policy.

    Attributes:
        inner: its decisions apply but for one rule; not a parameter.
    """

    inner: Policy = field(metadata=NO_PARAMETER)

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = _ALL_NEEDS
    stateless: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The policy with all that is around it, as in ``sia+hysteresis``."""
        return f"{label_of(self.inner)}+{self.name}"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Return the inner plan."""
        return self.inner.plan(snapshot, state)


def without(plan: Plan, dropped: set[int], why: str) -> Plan:
    """``plan`` without some jobs, which get the reason ``why``."""
    if not dropped:
        return plan
    return replace(
        plan,
        allocs={job_id: alloc for job_id, alloc in plan.allocs.items() if job_id not in dropped},
        order=tuple(job_id for job_id in plan.order if job_id not in dropped),
        why={**plan.why, **dict.fromkeys(sorted(dropped), why)},
    )
