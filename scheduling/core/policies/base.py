"""What a policy is: a pure function of a snapshot and its own small state."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from scheduling.core.policies.plans import rigid_alloc
from scheduling.core.policy_interface import Plan, Snapshot

__all__ = ["Need", "Policy", "label_of", "rigid_alloc"]


class Need(StrEnum):
    """What a policy must be told besides gangs and the order of arrival."""

    RUNTIME = "runtime"
    THROUGHPUT = "throughput"
    GOODPUT = "goodput"
    DEADLINE = "deadline"
    TELEMETRY = "telemetry"
    HISTORY = "history"
    CELLS = "cells"
    SHARING = "sharing"


class Policy(Protocol):
    """Decides who gets how much; never where, never by clock, I/O or unseeded chance.

    Attributes:
        name: by which a virtual cluster chooses it.
        aliases: other names that it answers to.
        summary: one line for lists.
        needs: what it must be told.
        stateless: its plan depends on the snapshot alone, and planning again changes nothing.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[Need]]
    stateless: ClassVar[bool]

    def __init__(self, **parameters: Any) -> None: ...

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """The desired state, and the policy's own state for the next round.

        Args:
            snapshot: the virtual cluster's private view.
            state: what the last call returned (empty at first); JSON values only.
        """
        ...


def label_of(policy: Policy) -> str:
    """A policy's name, with those of the combinators around it."""
    return str(getattr(policy, "label", policy.name))
