"""Calendar of free devices of one type, for backfill."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
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
            overrun: assumed remaining seconds, above 0, of a job that has outlived its estimate.
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

    def free_at(self, time: float) -> int:
        """Devices free at ``time``."""
        return self._free[bisect_right(self._times, time) - 1]

    def least_free(self, start: float, end: float) -> int:
        """The fewest devices that are free at any moment of ``[start, end)``."""
        first = bisect_right(self._times, start) - 1
        last = max(first + 1, bisect_left(self._times, end))
        return min(self._free[first:last])

    def earliest(self, n: int, seconds: float) -> float:
        """The first time from which ``n`` devices are free for ``seconds``; inf if never."""
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
        """The index of the step that begins at ``time``, which is inserted if needed."""
        index = bisect_left(self._times, time)
        if index == len(self._times) or self._times[index] != time:
            self._times.insert(index, time)
            self._free.insert(index, self._free[index - 1])
        return index
