"""Points of metrics in a job's reports: parsing of hostile text, and collection into batches."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

LARGEST_STEP: Final = 1 << 53
LARGEST_TIME: Final = 1e11
LARGEST_EPOCH: Final = 1e9
LONGEST_NAME: Final = 100
MOST_NAMES: Final = 128
"""Names of a process in one batch."""
MOST_POINTS: Final = 40_000
"""Points of a rank in one batch; of more, every second one is left out."""
MOST_PROCESSES: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ ./:@%()+-]{0,99}")
_WORDS: Final = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}


class Point(NamedTuple):
    """A value of a metric, maybe not finite; ``time`` and ``epoch`` are NaN if unknown."""

    name: str
    step: int
    time: float
    epoch: float
    value: float


class Sample(NamedTuple):
    """A point with its series."""

    step: int
    time: float
    epoch: float
    value: float


class SeriesKey(NamedTuple):
    """A metric of one process of a rank."""

    process: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointBatch:
    """Points of a rank since the last batch, by series in order of arrival.

    Attributes:
        total_steps: declared number of the last step, if any.
    """

    series: Mapping[SeriesKey, list[Sample]] = field(default_factory=dict)
    total_steps: int | None = None

    def __bool__(self) -> bool:
        return bool(self.series) or self.total_steps is not None


@dataclass(slots=True)
class PointTally:
    """Collects points of a rank, within bounds."""

    _series: dict[SeriesKey, list[Sample]] = field(default_factory=dict)
    _size: int = 0
    _total_steps: int | None = None

    def take(self, found: Mapping[str, Any]) -> None:
        """Add the points of a parsed line."""
        process = found.get("local_rank", 0)
        if type(process) is not int or not 0 <= process < MOST_PROCESSES:
            return
        total = found.get("total_steps")
        if type(total) is int and 0 < total <= LARGEST_STEP:
            self._total_steps = total
        for point in points_of(found):
            self.add(SeriesKey(process, point.name), Sample(*point[1:]))

    def add(self, key: SeriesKey, sample: Sample) -> None:
        """Add one point."""
        samples = self._series.get(key)
        if samples is None:
            if len(self._series) >= MOST_NAMES * MOST_PROCESSES:
                return
            samples = self._series[key] = []
        samples.append(sample)
        self._size += 1
        if self._size > MOST_POINTS:
            self._series = {key: samples[::-2][::-1] for key, samples in self._series.items()}
            self._size = sum(map(len, self._series.values()))

    def sum_up(self) -> PointBatch:
        """Return all points since the last call."""
        batch = PointBatch(series=self._series, total_steps=self._total_steps)
        self._series, self._size, self._total_steps = {}, 0, None
        return batch


def points_of(found: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the points of a parsed line of reports.

    ``points`` has ``[step, time, epoch, {name: value}]`` for each step. A line without it may
    have ``metrics`` for its own step, and has the loss.
    """
    rows = found.get("points")
    if not isinstance(rows, list):
        named = found.get("metrics")
        values = {"loss": found.get("loss"), **(named if isinstance(named, dict) else {})}
        rows = [[found.get("step"), found.get("time"), found.get("epoch"), values]]
    for row in rows:
        if isinstance(row, list) and len(row) == 4 and isinstance(row[3], dict):
            yield from _points(*row)


def _points(step: object, time: object, epoch: object, values: dict[str, Any]) -> Iterator[Point]:
    if type(step) is not int or not 0 <= step <= LARGEST_STEP:
        return
    at, passes = _bounded(time, LARGEST_TIME), _bounded(epoch, LARGEST_EPOCH)
    for name, value in values.items():
        number = read_value(value)
        if number is not None and is_metric_name(name):
            yield Point(name, step, at, passes, number)


def is_metric_name(name: object) -> bool:
    """Return whether a text is a valid name of a metric."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def read_value(value: object) -> float | None:
    """Return a number, also NaN and infinities, which are strings in JSON; None for others."""
    if isinstance(value, str):
        sign = -1.0 if value.startswith("-") else 1.0
        word = _WORDS.get(value.lstrip("+-").lower()) if len(value) < 12 else None
        return None if word is None else sign * word
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _bounded(value: object, most: float) -> float:
    number = read_value(value)
    return number if number is not None and 0.0 <= number <= most else math.nan
