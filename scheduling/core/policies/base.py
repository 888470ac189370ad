"""What a policy is: a pure function of a snapshot and its own small state."""

from collections.abc import Mapping
from typing import Any, Protocol

from scheduling.core.values import Alloc, Part, Plan, PolicyJob, Snapshot


class Policy(Protocol):
    """Decides who gets how much; never where, never by clock, I/O or unseeded chance."""

    @property
    def name(self) -> str:
        """The name by which a virtual cluster chooses it."""
        ...

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """The desired state, and the policy's own state for the next round.

        Args:
            snapshot: the virtual cluster's private view.
            state: what the last call returned (empty at first); JSON values only.
        """
        ...


def rigid_alloc(job: PolicyJob) -> Alloc:
    """The allocation that gives a rigid job exactly what it asks for."""
    return Alloc(
        parts=tuple(
            Part(
                n=member.count * member.devices,
                type=member.device_types[0] if member.device_types else None,
                level=member.within.value,
            )
            for member in job.demand.members
        )
    )
