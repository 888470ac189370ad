"""Turns of the runs on a device: one works, and all others are suspended with their memory.

The coordinator hands the device over only when the previous run is suspended: it waits at its
gate (tier T0), or its processes are frozen (tier T1). Its memory stays on the device.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional

GATE_TIER, FROZEN_TIER = "T0", "T1"


class Suspension(NamedTuple):
    """The suspensions of a run.

    Attributes:
        tier: how it was suspended last, ``T0`` or ``T1``; empty before.
        number: number of its suspensions.
        seconds: time for which it was suspended.
        longest: longest time from the end of its turn until it was suspended, in seconds.
        since: the node's boot clock when its present suspension began; None while it works.
    """

    tier: str = ""
    number: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    since: Optional[float] = None


class Turns:
    """The turns on one device.

    Args:
        seconds: length of a turn.
        first: the run that works now, which is the holder.
        now: the node's boot clock, in seconds.
    """

    def __init__(self, seconds: float, first: str, now: float) -> None:
        self.seconds = seconds
        self._order: List[str] = [first]
        self._working = first
        self._next = ""
        self._since = self._looked_at = now
        self._suspensions: Dict[str, Suspension] = {}

    def suspension(self, run_id: str) -> Suspension:
        """Return the suspensions of a run."""
        return self._suspensions.get(run_id, Suspension())

    def look(self, run_ids: List[str], now: float, tier_of: Callable[[str], str]) -> str:
        """Return the run that may work now; empty while the previous one is being suspended.

        Args:
            run_ids: the holder, then its guests by slot.
            now: the node's boot clock, in seconds.
            tier_of: how a run is suspended now; empty while it is active.
        """
        passed, self._looked_at = max(now - self._looked_at, 0.0), now
        for run_id in run_ids:
            if run_id != self._working:
                self._wait(run_id, passed, now, tier_of)
        self._order = run_ids
        if self._working and self._working not in run_ids:
            self._begin(run_ids[0], now)  # it has left the device
        if self._next:
            self._hand_over(now, tier_of)
        elif len(run_ids) > 1 and now - self._since >= self.seconds:
            place = run_ids.index(self._working)
            self._next, self._since = run_ids[(place + 1) % len(run_ids)], now
        return "" if self._next else self._working

    def _wait(self, run_id: str, passed: float, now: float, tier_of: Callable[[str], str]) -> None:
        known = self.suspension(run_id)
        since, tier = known.since, known.tier
        if since is None and tier_of(run_id):
            since, tier = now, tier_of(run_id)  # it has come to the device in the turn of another
        self._suspensions[run_id] = known._replace(
            seconds=known.seconds + passed, since=since, tier=tier
        )

    def _hand_over(self, now: float, tier_of: Callable[[str], str]) -> None:
        tier = tier_of(self._working)
        if not tier:
            return
        known = self.suspension(self._working)
        took = now - self._since
        self._suspensions[self._working] = known._replace(
            tier=tier, number=known.number + 1, longest=max(known.longest, took), since=now
        )
        self._begin(self._next if self._next in self._order else self._order[0], now)

    def _begin(self, run_id: str, now: float) -> None:
        self._working, self._next, self._since = run_id, "", now
        if run_id in self._suspensions:
            self._suspensions[run_id] = self._suspensions[run_id]._replace(since=None)
