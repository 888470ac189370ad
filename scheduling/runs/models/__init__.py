"""Rows of attempts, leases, preemptions and shared devices."""

from scheduling.runs.models.attempts import (
    Attempt,
    AttemptProgress,
    AttemptUse,
    CpuLease,
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
    "CpuLease",
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
