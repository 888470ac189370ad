"""Replay of a stored round: the same snapshot must give the same decision."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from scheduling.core.policies import make_policy
from scheduling.core.policies.base import label_of
from scheduling.core.policy_interface import Plan, Snapshot
from scheduling.core.round.decide import decide
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot

TIMED_OUT: Final = "took too long"
"""Part of the fault of a policy that exceeded its time."""


def replay_round(
    snapshot: ClusterSnapshot, stored: RoundResult, *, make: MakePolicy = make_policy
) -> RoundResult:
    """Decide a stored round again.

    A policy that exceeded its time in the stored round fails again, without a clock.

    Args:
        snapshot: the stored snapshot.
        stored: the stored decision.
        make: builds a policy from its name and parameters.
    """
    # A snapshot that was read has one object of parameters per virtual cluster.
    late = {
        id(vc.policy_args)
        for vc in snapshot.vcs
        if TIMED_OUT in stored.policy_faults.get(vc.id, "")
    }

    def made(name: str, args: Mapping[str, Any]) -> Any:
        policy = make(name, args)
        return _LatePolicy(label_of(policy)) if id(args) in late else policy

    return decide(snapshot, make=made)


def differing_fields(one: RoundResult, other: RoundResult) -> tuple[str, ...]:
    """Return the names of the fields in which two decisions differ."""
    return tuple(
        item.name
        for item in fields(RoundResult)
        if getattr(one, item.name) != getattr(other, item.name)
    )


class _LatePolicy:
    """Replaces a policy that exceeded its time limit."""

    def __init__(self, label: str) -> None:
        self.label = self.name = label

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        raise TimeoutError
