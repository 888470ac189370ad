"""The guard around every policy: one that fails costs its own round and nothing else."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from scheduling.core.policies.base import Policy, label_of
from scheduling.core.policies.plans import IllegalPlanError, check_plan, keep_running
from scheduling.core.policy_interface import Plan, Snapshot

#: Bounds the time of a call; raises ``TimeoutError`` in it when the time is over.
TimeLimit: TypeAlias = Callable[[], AbstractContextManager[None]]

#: Raises ``IllegalPlanError`` for a plan that its driver cannot carry out.
PlanCheck: TypeAlias = Callable[[Snapshot, Plan], None]


def guarded_plan(
    policy: Policy,
    snapshot: Snapshot,
    state: Mapping[str, Any],
    *,
    limit: TimeLimit = nullcontext,
    check: PlanCheck = check_plan,
) -> tuple[Plan, Mapping[str, Any], str | None]:
    """Return a legal plan, whatever the policy does.

    Args:
        policy: any implementation.
        snapshot: input of the policy.
        state: returned by its last call.
        limit: from the driver, which has the clock.
        check: the driver's check of a plan.

    Returns:
        The plan and the policy's new state; or, if the policy raises, exceeds its time or returns
        an illegal plan, one that leaves running jobs alone, the old state, and the fault.
    """
    try:
        with limit():
            plan, after = policy.plan(snapshot, state)
        check(snapshot, plan)
    except IllegalPlanError as error:
        fault = f"policy {label_of(policy)} returned an illegal plan: {error}"
    except TimeoutError:
        fault = f"policy {label_of(policy)} took too long"
    except Exception as error:  # one policy's bug must not stop everybody's round
        fault = f"policy {label_of(policy)} failed with {type(error).__name__}: {error}"
    else:
        return plan, after, None
    return keep_running(snapshot), state, f"{fault}; running jobs keep their devices"
