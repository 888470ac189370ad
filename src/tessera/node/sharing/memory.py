"""Device memory of guests: a bound that falls at once and rises only under a stable holder."""

from __future__ import annotations

import enum
from typing import List, NamedTuple, Sequence, Tuple

_LEAST_HEADROOM = 256 << 20
_WINDOW_SECONDS, _WINDOW_STEPS = 60.0, 200
_STABLE_SECONDS, _STABLE_STEPS = 30.0, 100
_RISE_SECONDS = 10.0
_FIRST_RISE_SECONDS = 60.0


class MemoryAction(enum.Enum):
    """The action that a bound requires of the guest."""

    KEEP = "keep"  # the bound stays or rises
    SHRINK = "shrink"
    EVICT = "evict"  # less than the guest's floor remains; freezing frees no memory


class MemoryBound(NamedTuple):
    """Upper bound of a guest in bytes, 0 if it must leave."""

    bytes: int
    action: MemoryAction


class Peak(NamedTuple):
    """Peak of the holder's device memory at one look: boot clock, steps so far, bytes."""

    at: float
    step: int
    bytes: int


class Peaks(NamedTuple):
    """Peaks of the holder within the last 60 s or 200 steps, and when they last rose.

    Attributes:
        window: the peaks, oldest first.
        rose_at: time of the latest new highest peak.
        rose_step: the holder's step at that time.
    """

    window: Tuple[Peak, ...] = ()
    rose_at: float = 0.0
    rose_step: int = 0

    @property
    def highest(self) -> int:
        """Return the highest peak of the window in bytes, 0 without one."""
        return max((peak.bytes for peak in self.window), default=0)


def after_look(peaks: Peaks, found: Peak) -> Peaks:
    """Add a peak, and drop those that are older than both 60 s and 200 steps."""
    kept = tuple(
        peak
        for peak in peaks.window
        if found.at - peak.at <= _WINDOW_SECONDS or found.step - peak.step <= _WINDOW_STEPS
    )
    highest = max((peak.bytes for peak in kept), default=0)
    if found.bytes > highest:
        return Peaks((*kept, found), found.at, found.step)
    return peaks._replace(window=(*kept, found))


def is_stable(peaks: Peaks, now: float, step: int) -> bool:
    """Whether the holder has had no new highest peak for 30 s and 100 steps."""
    long_ago = now - peaks.rose_at >= _STABLE_SECONDS
    return bool(peaks.window) and long_ago and step - peaks.rose_step >= _STABLE_STEPS


def may_rise(*, stable: bool, now: float, guest_since: float, rose_at: float) -> bool:
    """Whether a guest's bound may rise: not in its first minute, and at most once in 10 s.

    Args:
        stable: whether the holder is stable.
        now: the node's boot clock, in seconds.
        guest_since: when the guest started.
        rose_at: when its bound last rose.
    """
    return stable and now - guest_since >= _FIRST_RISE_SECONDS and now - rose_at >= _RISE_SECONDS


def headroom(device: int) -> int:
    """Return the bytes of a device that no job may use: 3 %, at least 256 MiB."""
    return max(_LEAST_HEADROOM, 3 * device // 100)


def holder_bound(peaks: Sequence[int], device: int) -> int:
    """Return the bytes left to the holder: 1.05 x its highest peak, the device if unknown."""
    return 105 * max(peaks) // 100 if peaks else device


def room(device: int, contexts: int, holder: int) -> int:
    """Return the bytes for all guests together; negative if the holder needs more."""
    return device - headroom(device) - contexts - holder


def guest_bound(available: int, floor: int, before: int, *, rises: bool) -> MemoryBound:
    """Return the next bound of a guest.

    Args:
        available: the guest's part of the room, in bytes.
        floor: the minimum device memory with which the guest can work, in bytes.
        before: its bound so far, in bytes.
        rises: whether the bound may rise now.
    """
    if available < floor:
        return MemoryBound(0, MemoryAction.EVICT)
    if available < before:
        return MemoryBound(available, MemoryAction.SHRINK)
    return MemoryBound(available if rises else before, MemoryAction.KEEP)


def divided(available: int, floors: Sequence[int]) -> List[int]:
    """Divide the room of a device evenly above the floors of its guests.

    Args:
        available: the room, in bytes.
        floors: floors of the guests by slot, in bytes.

    Returns:
        Bytes by slot. If the floors do not fit, guests of high slots get 0 and must leave.
    """
    staying = len(floors)
    while staying and sum(floors[:staying]) > available:
        staying -= 1
    if not staying:
        return [0] * len(floors)
    above = (available - sum(floors[:staying])) // staying
    leaving = len(floors) - staying
    return [floor + above for floor in floors[:staying]] + [0] * leaving
