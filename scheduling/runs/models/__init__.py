"""Rows of attempts, leases, preemptions and shared devices."""

from scheduling.runs.models.attempts import (
    Attempt,
    AttemptProgress,
    AttemptUse,
    Lease,
    Member,
    StepTally,
)
from scheduling.runs.models.canaries import CanaryRun
from scheduling.runs.models.preemptions import EvictionTally, Preemption, WaitTally
from scheduling.runs.models.sharing import GuestDelay, PairPace, SharedDevice, SharedMinute

__all__ = [
    "Attempt",
    "AttemptProgress",
    "AttemptUse",
    "CanaryRun",
    "EvictionTally",
    "GuestDelay",
    "Lease",
    "Member",
    "PairPace",
    "Preemption",
    "SharedDevice",
    "SharedMinute",
    "StepTally",
    "WaitTally",
]
