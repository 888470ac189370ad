"""Jobs of one virtual cluster that share a device as equals, as their policy has planned.

One of them holds the device, and the others run beside it. Neither has priority: the loss of the
holder is limited to half of its pace, and the policy separates jobs that are slower together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from scheduling.core.sharing.hosts import GuestNeed
from scheduling.core.sharing.pairs import Paces, PairRecord

PEER_SLOWDOWN: Final = 0.5
"""Share of its pace that the holder may lose to another job that is its equal."""
MEASURED_SECONDS: Final = 120.0
"""Time for which jobs must have shared a device before their paces count as measured."""
MOST_IN_TURNS: Final = 4
"""Most jobs that take turns on a device: the holder and three others."""
HALVES: Final = Paces(0.5, 0.5)


def guessed_together(one: float | None, other: float | None) -> Paces:
    """Return the paces of two equals that were never measured together.

    Args:
        one: share of the time in which the first job uses its device alone; None if unknown.
        other: that of the second job.
    """
    if one is None or other is None:
        return HALVES
    total = one + other
    pace = 1.0 if total <= 1.0 else 1.0 / total
    return Paces(pace, pace)


def tier_now(tier: str, since: datetime | None, turn_seconds: float) -> str:
    """Return how a job is suspended now for the turn of another one; empty while it is active.

    Args:
        tier: how it was suspended last.
        since: time at which its present suspension began; None if it worked at the last report.
        turn_seconds: length of a turn; 0 without turns, or without a recent report.
    """
    return tier if since is not None and turn_seconds > 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPairs:
    """Expected paces of jobs that a policy may pair.

    Attributes:
        needs: device memory and application of the jobs that may be paired, by ID.
        measured: pairs by application of the holder, device type, application of the other job.
        memory: bytes of the smallest device by type; a type without a value is not checked.
    """

    needs: Mapping[int, GuestNeed]
    measured: Mapping[str, Mapping[str, Mapping[str, PairRecord]]] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)

    def paces(
        self, jobs: tuple[int, int], utils: tuple[float | None, float | None], device_type: str
    ) -> Paces:
        """Return the paces of two jobs together, as fractions of their paces alone.

        Args:
            jobs: IDs of the jobs; either may become the holder.
            utils: share of the time in which each uses its device alone; None if unknown.
            device_type: type of the device.

        Returns:
            0 for both if one may not be paired, or their memory does not fit.
        """
        one, other = (self.needs.get(job) for job in jobs)
        if one is None or other is None:
            return Paces(0.0, 0.0)
        if one.floor + other.floor > self.memory.get(device_type, one.floor + other.floor):
            return Paces(0.0, 0.0)
        guess = guessed_together(*utils)
        known = self._record(one, other, device_type)
        if known is not None:
            return known.shrunk(guess)
        turned = self._record(other, one, device_type)
        if turned is not None:
            found = turned.shrunk(Paces(guess.guest, guess.holder))
            return Paces(found.guest, found.holder)
        return guess

    def _record(self, holder: GuestNeed, guest: GuestNeed, device_type: str) -> PairRecord | None:
        of_type = self.measured.get(holder.application, {}).get(device_type, {})
        return of_type.get(guest.application)
