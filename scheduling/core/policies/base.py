"""The interface of policies: pure functions of a snapshot and their own small state."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from scheduling.core.policies.plans import rigid_alloc
from scheduling.core.policy_interface import Plan, Snapshot

__all__ = ["Need", "Policy", "label_of", "rigid_alloc"]


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
    """Decides the devices of each job; no placement, no clock, no I/O, no unseeded chance.

    Attributes:
        name: for the setting of a virtual cluster.
        aliases: alternative names.
        summary: one line for lists.
        needs: its required inputs.
        stateless: its plan depends on the snapshot alone, and planning again changes nothing.
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
    """A policy's name, with those of the combinators around it."""
    return str(getattr(policy, "label", policy.name))
