"""Enforcement in the guest's runner: freezes the guest if its bound or holder requires it.

A guest whose library waits at a closed gate is not frozen. Any other guest is frozen while the
gate is closed, and works in slices of time while it is open. Nobody has to report that a
coordinator has ended: its lock is free, and the bound expires.
"""

from __future__ import annotations

import math
from typing import Callable, NamedTuple, Optional, Tuple

from tessera import protocol
from tessera.device_sharing import GuestPlace
from tessera.node import system
from tessera.node.runs import Run
from tessera.node.sharing import bounds, files
from tessera.node.sharing.files import GuestReport
from tessera.node.sharing.tails import ReportTail

LOOK_SECONDS = 0.05
LOCK_SECONDS = 1.0
STANDING_SECONDS = 1.0
"""A guest that listens has this time to reach its gate before it is frozen."""
TURN_STANDING_SECONDS = 0.5
"""The same at the end of its turn, for which the next run waits."""
STARTING_SECONDS = 20.0
"""A program works without slices for this time, in which its library may report itself."""
LEAVING_COMPUTE = 0.2
"""Part of the time in which a guest works that has its notice to leave."""
_SLICE_SECONDS, _LEAST_SLICE_SECONDS = 0.2, 0.02


class Leave(NamedTuple):
    """Reason and grace period of a guest that has to leave its device."""

    reason: str
    seconds: float


class GuestWatch:
    """Watches the bound of a guest.

    Args:
        run: the guest.
        place: its place.
        directory: directory of its device.
        freeze: freezes or thaws all processes of the guest.

    Attributes:
        is_frozen: whether they are frozen.
        is_lifted: whether the guest has become the holder.
    """

    def __init__(
        self, run: Run, place: GuestPlace, directory: str, freeze: Callable[[bool], None]
    ) -> None:
        self.is_frozen = self.is_lifted = False
        self._run, self._place, self._directory, self._freeze = run, place, directory, freeze
        self._tail = ReportTail(run)
        self._report = GuestReport()
        self._bound: Optional[bounds.Bound] = None
        self._has_to_leave = ""
        self._is_in_turns = False
        self._lock_at = -math.inf
        self._gone_since = self._closed_since = math.inf
        self._closed_number = 0
        self._worked = 0.0
        self._looked_at = math.inf

    def look(self, now: float, *, is_leaving: bool) -> Optional[Leave]:
        """Freeze or thaw the guest as its bound requires.

        Args:
            now: the node's boot clock, in seconds.
            is_leaving: whether the job has its notice to leave.

        Returns:
            Why the guest has to leave, and in how many seconds; None while it may stay.
        """
        if self.is_lifted:
            return None
        self._read(now)
        if self._is_promoted():
            self._lift(now)
            return None
        if not self._report.listens and not self.is_frozen:
            self._worked += max(now - self._looked_at, 0.0)
        self._looked_at = now
        self._set_frozen(frozen=self._must_stand(now, is_leaving=is_leaving))
        if self._has_to_leave:
            return Leave(self._has_to_leave, self._place.leave_seconds)
        if now - self._gone_since >= self._place.leave_seconds:
            return Leave("holder-gone", self._place.leave_seconds)
        return None

    def next_at(self, now: float) -> float:
        """Return the time of the next call of ``look``."""
        if self.is_lifted:
            return math.inf
        compute = bounds.compute_at(self._bound, now)
        if self._is_sliced() and compute > 0:
            return min(now + LOOK_SECONDS, _next_edge(now, compute) + now)
        return now + LOOK_SECONDS

    def thaw(self) -> None:
        """Thaw the guest, at its end or for its grace period."""
        self._set_frozen(frozen=False)

    # -- inputs ---------------------------------------------------------------------------

    def _read(self, now: float) -> None:
        for line in self._tail.lines():
            self._report = files.report_of(line) or self._report
        document = files.read_document(self._run.file(files.BOUND_FILE))
        found = bounds.parsed(document)
        if document is not None and found is not None:
            self._bound = bounds.newest(self._bound, found)
            self._is_in_turns = document.get("why") == "turn"
            if document.get("leave") is True:
                self._has_to_leave = str(document.get("why"))[:100] or "device-sharing"
        if now - self._lock_at >= LOCK_SECONDS:
            self._lock_at = now
            holder = files.coordinator_of(self._directory)
            is_there = holder == self._place.holder_run_id
            self._gone_since = math.inf if is_there else min(self._gone_since, now)

    def _is_promoted(self) -> bool:
        orders = files.read_orders(self._directory) if self._gone_since < math.inf else None
        return orders is not None and orders.holder_run_id == self._run.run_id

    def _lift(self, now: float) -> None:
        """Remove all bounds: the guest has become the holder."""
        self.is_lifted = True
        self.thaw()
        memory = 0 if self._bound is None else self._bound.memory
        bound = bounds.issued(self._bound, 1.0, memory, now)
        files.write_document(
            self._run.file(protocol.JOB_BOUND_FILE),
            files.bound_document(bound, why="promoted", lifted=True),
            mode=0o644,
        )

    # -- decisions -------------------------------------------------------------------------

    def _must_stand(self, now: float, *, is_leaving: bool) -> bool:
        if is_leaving:  # a guest with gates slows itself down
            return not (self._report.listens or _is_in_slice(now, LEAVING_COMPUTE))
        if self._gone_since < math.inf or bounds.must_freeze(self._bound, now):
            return True
        compute = bounds.compute_at(self._bound, now)
        if compute > 0:
            self._closed_since = math.inf
            return self._is_sliced() and not _is_in_slice(now, compute)
        if self._closed_since == math.inf and self._bound is not None:
            self._closed_since, self._closed_number = now, self._bound.number
        if self.is_frozen or not self._report.listens:
            return True
        is_standing = self._report.stands >= self._closed_number
        longest = TURN_STANDING_SECONDS if self._is_in_turns else STANDING_SECONDS
        return not is_standing and now - self._closed_since >= longest

    def _is_sliced(self) -> bool:
        return not self._report.listens and self._worked >= STARTING_SECONDS

    def _set_frozen(self, *, frozen: bool) -> None:
        if frozen == self.is_frozen:
            return
        self._freeze(frozen)
        self.is_frozen = frozen
        path = self._run.file(files.FROZEN_FILE)
        if frozen:
            files.write_document(path, {})
        else:
            system.remove_quietly(path)


def slice_of(compute: float) -> Tuple[float, float]:
    """Return length and period of the slices of a program without gates, in seconds."""
    length = max(_SLICE_SECONDS * compute, _LEAST_SLICE_SECONDS)
    return length, length / compute


def _is_in_slice(elapsed: float, compute: float) -> bool:
    length, period = slice_of(compute)
    return elapsed % period < length


def _next_edge(elapsed: float, compute: float) -> float:
    length, period = slice_of(compute)
    within = elapsed % period
    return (length if within < length else period) - within
