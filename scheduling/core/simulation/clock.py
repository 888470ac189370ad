"""The event clock of a simulation."""

import heapq
from enum import IntEnum
from typing import NamedTuple


class EventKind(IntEnum):
    """Kinds of events, in their order at one instant."""

    END = 0
    LEAVE = 1
    GATE = 2
    WAKE = 3
    EXTERNAL = 4


class ClockEvent(NamedTuple):
    """An event: ``number`` is a job ID or the index of an external event.

    Attributes:
        version: version of the job's progress for which the event holds.
    """

    at: float
    kind: EventKind
    number: int
    version: int


class EventClock:
    """Future events in order, and the present in seconds since the epoch."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._events: list[ClockEvent] = []

    def add(self, at: float, kind: EventKind, number: int = 0, version: int = 0) -> None:
        """Add an event."""
        heapq.heappush(self._events, ClockEvent(at, kind, number, version))

    def first(self) -> ClockEvent | None:
        """Return the next event."""
        return self._events[0] if self._events else None

    def pop(self) -> ClockEvent:
        """Remove and return the next event."""
        return heapq.heappop(self._events)
