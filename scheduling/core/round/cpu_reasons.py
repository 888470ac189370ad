"""Reasons of jobs without devices that wait for CPUs and memory of nodes."""

from collections.abc import Sequence

from scheduling.core.cpu_pools import NOTHING, Amount, gibibytes
from scheduling.core.messages import message
from scheduling.core.reasons import Reason
from scheduling.core.values import QueuedJob
from tessera.messages import Message
from tessera.reasons import ReasonCode


def waits_for_cpus(instances: Sequence[Amount], best: Amount, users: Sequence[int]) -> Reason:
    """Build the reason of a job that fits only in pools that others use.

    Args:
        instances: amount of each instance.
        best: the largest free amount of a usable node.
        users: jobs that use these nodes.
    """
    largest = max(instances)
    return Reason(
        code=ReasonCode.WAITING_FOR_CPUS,
        message=message(
            "waiting-for-cpus",
            n=len(instances),
            cpus=largest.cpus,
            memory=gibibytes(largest.memory),
            free=max(best.cpus, 0.0),
            left=gibibytes(max(best.memory, 0)),
        ),
        blocked_by=tuple(users),
        unblock=(message("request-fewer-cpus"), message("ask-for-cpus")),
    )


def never_fits(instances: Sequence[Amount], most: Amount) -> Reason:
    """Build the reason of a job that does not fit in empty pools.

    Args:
        instances: amount of each instance.
        most: the largest pool of a suitable node; ``NOTHING`` if none exists.
    """
    largest = max(instances)
    found = message("no-cpu-pool")
    if most != NOTHING:
        found = message(
            "no-node-with-cpus",
            n=len(instances),
            cpus=largest.cpus,
            memory=gibibytes(largest.memory),
            most=most.cpus,
            there=gibibytes(most.memory),
        )
    return Reason(
        code=ReasonCode.NO_NODE_WITH_CPUS,
        message=found,
        unblock=(message("request-fewer-cpus"), message("ask-for-cpus")),
    )


def no_usable_pool() -> Reason:
    """Build the reason of a job whose suitable nodes are all out of service."""
    return Reason(
        code=ReasonCode.CELLS_UNHEALTHY,
        message=message("no-usable-cpu-pool"),
        unblock=(message("ask-to-return-nodes"),),
    )


def behind_oldest(head: QueuedJob, aged_seconds: float) -> Reason:
    """Build the reason of a job that fits only on nodes that an older job has reserved."""
    return Reason(
        code=ReasonCode.BEHIND_HIGHER_PRIORITY,
        message=message("behind-oldest-cpu-job", minutes=round(aged_seconds / 60)),
        blocked_by=(head.id,),
    )


def after_many(text: Message) -> Reason:
    """Build the reason of a job that the round did not try any more."""
    return Reason(code=ReasonCode.BEHIND_HIGHER_PRIORITY, message=text)
