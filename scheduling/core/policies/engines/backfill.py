"""Backfill: jobs may pass a head that does not fit, if no reservation is delayed.

EASY (Lifka, JSSPP '95) reserves only for the head of the queue, conservative backfill (Mu'alem and
Feitelson, TPDS '01) for every waiting job. Both walk over a calendar of free devices, with a
different number of reservations.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf


class Calendar:
    """A step function from time to free devices that only ever decreases."""

    def __init__(
        self, *, now: float, free: int, returns: Iterable[tuple[float, int]], overrun: float = 60.0
    ) -> None:
        """Create the calendar from the free devices and their returns.

        Args:
            now: start of the calendar.
            free: devices free now.
            returns: times and numbers of returning devices.
            overrun: assumed remaining seconds, above 0, of a job that has exceeded its estimate.
        """
        steps: dict[float, int] = {}
        for time, n in returns:
            end = time if time > now else now + overrun
            steps[end] = steps.get(end, 0) + n
        self._times = [now]
        self._free = [free]
        for time in sorted(steps):
            self._times.append(time)
            self._free.append(self._free[-1] + steps[time])

    def least_free(self, start: float, end: float) -> int:
        """Return the minimum number of free devices during ``[start, end)``."""
        first = bisect_right(self._times, start) - 1
        last = max(first + 1, bisect_left(self._times, end))
        return min(self._free[first:last])

    def earliest(self, n: int, seconds: float) -> float:
        """Return the earliest time with ``n`` free devices for ``seconds``; inf if never."""
        start = inf
        for index, (time, free) in enumerate(zip(self._times, self._free, strict=True)):
            if free < n:
                start = inf
                continue
            start = min(start, time)
            end = self._times[index + 1] if index + 1 < len(self._times) else inf
            if end - start >= seconds or end == inf:
                return start
        return inf

    def reserve(self, *, start: float, seconds: float, n: int) -> None:
        """Reserve ``n`` devices in ``[start, start + seconds)``.

        Raises:
            ValueError: fewer are free in that span.
        """
        end = start + seconds
        if self.least_free(start, end) < n:
            raise ValueError(f"{n} devices are not free for {seconds} s from {start}")
        first = self._split(start)
        last = self._split(end) if end < inf else len(self._times)
        for index in range(first, last):
            self._free[index] -= n

    def _split(self, time: float) -> int:
        """Return the index of the step that begins at ``time``; insert the step if needed."""
        index = bisect_left(self._times, time)
        if index == len(self._times) or self._times[index] != time:
            self._times.insert(index, time)
            self._free.insert(index, self._free[index - 1])
        return index


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A gang that waits.

    Attributes:
        n: devices.
        types: usable types, the best first.
        seconds: its estimated run time by its owner, inf if unknown.
    """

    id: int
    n: int
    types: tuple[str, ...]
    seconds: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reservation: start time and device type."""

    start: float
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillResult:
    """Result of a backfill pass.

    Attributes:
        starts: type by job, for jobs that start now, in order.
        holds: reservations of jobs that wait, in order.
    """

    starts: Mapping[int, str]
    holds: Mapping[int, Hold]


def backfill(
    queue: Iterable[Waiting],
    calendars: Mapping[str, Calendar],
    *,
    now: float,
    reservations: int,
) -> BackfillResult:
    """Walk the queue in order, and start all jobs that do not delay a reservation.

    Args:
        queue: waiting jobs, the head first.
        calendars: one per type; they are modified.
        now: the time of the round.
        reservations: number of waiting jobs of each type that get one: 1 for EASY, the number of
            jobs for conservative backfill. Further jobs wait without one.

    Returns:
        Starts and reservations. A job that can never fit has no reservation and never starts.
    """
    starts: dict[int, str] = {}
    holds: dict[int, Hold] = {}
    held = dict.fromkeys(calendars, 0)
    for job in queue:
        known = [kind for kind in job.types if kind in calendars]
        fitting = (
            kind for kind in known if calendars[kind].least_free(now, now + job.seconds) >= job.n
        )
        kind = next(fitting, None)
        if kind is not None:
            calendars[kind].reserve(start=now, seconds=job.seconds, n=job.n)
            starts[job.id] = kind
            continue
        # A reservation on the type with the earliest start; in a tie, on the better type.
        options = [
            (calendars[kind].earliest(job.n, job.seconds), rank, kind)
            for rank, kind in enumerate(known)
            if held[kind] < reservations
        ]
        if not options:
            continue
        start, _, kind = min(options)
        if start < inf:
            calendars[kind].reserve(start=start, seconds=job.seconds, n=job.n)
            holds[job.id] = Hold(start=start, type=kind)
            held[kind] += 1
    return BackfillResult(starts=starts, holds=holds)
