"""The interface of policies, pure functions of a snapshot and a small state, and of policy rules.

A policy rule is a policy around another one; its state is that of the inner policy.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

from scheduling.core.policies.parameters import NO_PARAMETER
from scheduling.core.policies.plans import IllegalPlanError, check_plan, keep_running, rigid_alloc
from scheduling.core.policy_interface import Plan, Snapshot

__all__ = [
    "Combinator",
    "Need",
    "PlanCheck",
    "Policy",
    "TimeLimit",
    "guarded_plan",
    "label_of",
    "rigid_alloc",
    "without",
]

#: Limits the time of a call; raises ``TimeoutError`` in it after the limit.
TimeLimit: TypeAlias = Callable[[], AbstractContextManager[None]]

#: Raises ``IllegalPlanError`` for a plan that its driver cannot execute.
PlanCheck: TypeAlias = Callable[[Snapshot, Plan], None]


class Need(StrEnum):
    """An input that a policy needs besides gangs and the order of arrival."""

    RUNTIME = "runtime"
    THROUGHPUT = "throughput"
    GOODPUT = "goodput"
    DEADLINE = "deadline"
    TELEMETRY = "telemetry"
    HISTORY = "history"
    CELLS = "cells"
    SHARING = "sharing"


class Policy(Protocol):
    """Decides the devices of each job, without placement, clock, I/O or unseeded randomness.

    Attributes:
        name: name in the setting of a virtual cluster.
        aliases: alternative names.
        summary: one line for lists.
        needs: its required inputs.
        stateless: whether its plan depends only on the snapshot.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[Need]]
    stateless: ClassVar[bool]

    def __init__(self, **parameters: Any) -> None: ...

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Return the desired state, and the policy's own state for the next round.

        Args:
            snapshot: the virtual cluster's private view.
            state: returned by the last call (empty at first); JSON values only.
        """
        ...


def label_of(policy: Policy) -> str:
    """Return a policy's name, with the names of the combinators around it."""
    return str(getattr(policy, "label", policy.name))


def guarded_plan(
    policy: Policy,
    snapshot: Snapshot,
    state: Mapping[str, Any],
    *,
    limit: TimeLimit = nullcontext,
    check: PlanCheck = check_plan,
) -> tuple[Plan, Mapping[str, Any], str | None]:
    """Return a valid plan, even if the policy fails.

    Args:
        policy: any implementation.
        snapshot: input of the policy.
        state: returned by its last call.
        limit: time limit from the driver, which has the clock.
        check: the driver's check of a plan.

    Returns:
        The plan and the policy's new state; or, if the policy raises, exceeds its time or returns
        an illegal plan, a plan that keeps running jobs unchanged, the old state, and the error.
    """
    try:
        with limit():
            plan, after = policy.plan(snapshot, state)
        check(snapshot, plan)
    except IllegalPlanError as error:
        fault = f"policy {label_of(policy)} returned an illegal plan: {error}"
    except TimeoutError:
        fault = f"policy {label_of(policy)} took too long"
    except Exception as error:  # a bug of one policy must not stop the round
        fault = f"policy {label_of(policy)} failed with {type(error).__name__}: {error}"
    else:
        return plan, after, None
    return keep_running(snapshot), state, f"{fault}; running jobs keep their devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combinator:
    """A policy rule around another policy.

    Attributes:
        inner: the policy that the rule modifies; not a parameter.
    """

    inner: Policy = field(metadata=NO_PARAMETER)

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset(Need)
    stateless: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The name of the policy with its rules, as in ``sia+hysteresis``."""
        return f"{label_of(self.inner)}+{self.name}"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Return the inner plan."""
        return self.inner.plan(snapshot, state)


def without(plan: Plan, dropped: set[int], why: str) -> Plan:
    """Remove some jobs from ``plan``; these get the reason ``why``."""
    if not dropped:
        return plan
    return replace(
        plan,
        allocs={job_id: alloc for job_id, alloc in plan.allocs.items() if job_id not in dropped},
        order=tuple(job_id for job_id in plan.order if job_id not in dropped),
        why={**plan.why, **dict.fromkeys(sorted(dropped), why)},
    )
