"""Parsing of a job's reports, which are untrusted text, and sums over short intervals."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from workers.services.points import PointBatch, PointTally

LONGEST_LINE: Final = 64 << 10
LARGEST_STEP: Final = 1 << 62
MOST_STEPS: Final = (1 << 31) - 1
LARGEST_NUMBER: Final = 1e15
LONGEST_STEP_SECONDS: Final = 1e7
LARGEST_BATCH: Final = 1 << 40
LARGEST_NOISE: Final = 1e300
LARGEST_PARAMETERS: Final = 1 << 50
"""Bytes of all parameters."""

MOST_KINDS: Final = 8
"""Maximum number of step kinds in an interval; a batch size changes rarely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLine:
    """One line of the stream ``reports``.

    Attributes:
        step: number of the finished step.
        steps: number of steps in the line, this one and those before it.
        samples: mean samples of the process in each of them.
        step_seconds: mean duration of each of them.
        time: seconds since the epoch, node's clock.
        is_leading: from the first process of the rank, which counts the steps; of other processes,
            only samples count.
        batch: samples of all ranks in the step; None if not reported.
        accumulation: micro-batches of each process in it.
        noise: squared norm and variance of the gradient at the initial batch.
    """

    step: int
    steps: int
    samples: float
    step_seconds: float | None
    loss: float | None
    time: float | None
    is_leading: bool
    batch: int | None = None
    accumulation: int = 1
    noise: tuple[float, float] | None = None

    @property
    def seconds(self) -> float:
        """Duration of all its steps; 0 if unknown."""
        return (self.step_seconds or 0.0) * self.steps


def read_report(line: bytes) -> ReportLine | None:
    """Return the report in a line, or None if it is not valid."""
    found = read_line(line)
    return None if found is None else report_of(found)


def read_line(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line that is not an event; None if it is not valid."""
    if len(line) > LONGEST_LINE:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # An event is about no step.
    return found if isinstance(found, dict) and "event" not in found else None


def read_parameters(line: bytes) -> tuple[int, int] | None:
    """Return the bytes of the largest parameter tensor and of all, or None if not valid."""
    if len(line) > LONGEST_LINE or b'"parameters"' not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("event") != "parameters":
        return None
    largest, total = (found.get(name) for name in ("largest", "total"))
    if type(largest) is not int or type(total) is not int:
        return None
    return (largest, total) if 1 <= largest <= total <= LARGEST_PARAMETERS else None


def report_of(found: dict[str, Any]) -> ReportLine | None:
    """Return the report in a parsed line, or None if it is not valid."""
    step, samples = found.get("step"), _number(found, "samples", LARGEST_NUMBER)
    if type(step) is not int or not 0 <= step <= LARGEST_STEP:
        return None
    loss = _number(found, "loss", LARGEST_NUMBER, low=-LARGEST_NUMBER)
    return ReportLine(
        step=step,
        steps=_steps(found),
        samples=samples or 0.0,
        step_seconds=_number(found, "step_seconds", LONGEST_STEP_SECONDS),
        loss=loss,
        time=_number(found, "time", 1e12),
        is_leading=found.get("local_rank") in (0, None),
        batch=_count(found, "batch"),
        accumulation=_count(found, "accumulation") or 1,
        noise=_noise(found),
    )


def _count(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    return value if type(value) is int and 1 <= value <= LARGEST_BATCH else None


def _noise(found: dict[str, Any]) -> tuple[float, float] | None:
    """Parse both numbers, of which at least one must be positive."""
    said = found.get("noise")
    if not isinstance(said, list) or len(said) != 2:
        return None
    numbers = dict(enumerate(said))
    square, variance = (_number(numbers, place, LARGEST_NOISE) for place in (0, 1))
    if square is None or variance is None or square + variance <= 0.0:
        return None
    return square, variance


def _steps(found: dict[str, Any]) -> int:
    steps = found.get("steps", 1)
    return steps if type(steps) is int and 1 <= steps <= MOST_STEPS else 1


def _number(found: dict[Any, Any], name: object, high: float, *, low: float = 0.0) -> float | None:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and low <= number <= high else None


class StepKind(NamedTuple):
    """Number and total duration of the steps at one batch."""

    batch: int
    accumulation: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Progress of one rank in one interval.

    Attributes:
        seconds: duration, by the clock of the rank.
        reports_end: offset up to which its reports are counted in.
        batch, accumulation, noise: values of the newest step that reports them.
        kinds: the steps by batch, without the first report at each.
        parameters: bytes of the largest parameter tensor and of all; None if not reported since
            the last interval.
        points: values of metrics, of all steps.
        has_steps: False if the interval has only points from event files or MLflow, which say
            nothing about the progress of the training.
    """

    seconds: float
    step: int
    steps: int
    samples: float
    step_seconds: float | None
    loss: float | None
    reports_end: int
    batch: int | None = None
    accumulation: int = 1
    noise: tuple[float, float] | None = None
    kinds: tuple[StepKind, ...] = ()
    parameters: tuple[int, int] | None = None
    points: PointBatch = field(default_factory=PointBatch)
    has_steps: bool = True


@dataclass(slots=True)
class ReportTally:
    """Sums up one rank's reports between two samples.

    Attributes:
        offset: bytes of the stream that were read as complete lines.
        last_time: newest counted time, at which the next interval begins.
        others: receives the lines that are not reports.
    """

    offset: int = 0
    last_time: float | None = None
    others: Callable[[bytes], None] | None = None
    _points: PointTally = field(default_factory=PointTally)
    _has_points: bool = False
    _rest: bytes = b""
    _leading: ReportLine | None = None
    _last: ReportLine | None = None
    _samples: float = 0.0
    _busy: float = 0.0
    _steps: int = 0
    _noise: tuple[float, float] | None = None
    _parameters: tuple[int, int] | None = None
    _kinds: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    _warm: tuple[int, int] | None = None

    @property
    def read_offset(self) -> int:
        """Offset of the next read."""
        return self.offset + len(self._rest)

    def take(self, data: bytes) -> None:
        """Read the next piece of the stream."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.offset += len(line) + 1
            found = read_line(line)
            report = None if found is None else report_of(found)
            if found is not None and report is not None:
                self._count(report)
                self._points.take(found)
            elif found is not None and isinstance(found.get("points"), list):
                self._points.take(found)
                self._has_points = True
            elif (sizes := read_parameters(line)) is not None:
                self._parameters = sizes
            elif self.others is not None:
                self.others(line)
        if len(rest) > LONGEST_LINE:  # longer than any valid report: drop the whole line
            self.offset += len(rest)
            rest = b""
        self._rest = rest

    def skip_to(self, offset: int) -> None:
        """Continue at a later offset, since the node has dropped older reports above its cap."""
        self.offset, self._rest = offset, b""

    def sum_up(self) -> RankProgress | None:
        """Return the progress since the last call, or None without new reports."""
        last = self._last
        if last is None:
            return self._only_points() if self._has_points else None
        shown = self._leading or last
        progress = RankProgress(
            seconds=self._seconds(last),
            step=shown.step,
            steps=self._steps,
            samples=self._samples,
            step_seconds=self._busy / self._steps if self._busy else None,
            loss=shown.loss,
            reports_end=self.offset,
            batch=shown.batch,
            accumulation=shown.accumulation,
            noise=self._noise,
            kinds=tuple(StepKind(*kind, *spent) for kind, spent in self._kinds.items()),
            parameters=self._parameters,
            points=self._points.sum_up(),
        )
        self.last_time = last.time if last.time is not None else self.last_time
        self._leading = self._last = None
        self._samples, self._busy, self._steps = 0.0, 0.0, 0
        self._noise, self._kinds, self._has_points = None, {}, False
        self._parameters = None
        return progress

    def _only_points(self) -> RankProgress:
        self._has_points = False
        return RankProgress(
            seconds=0.0,
            step=0,
            steps=0,
            samples=0.0,
            step_seconds=None,
            loss=None,
            reports_end=self.offset,
            points=self._points.sum_up(),
            has_steps=False,
        )

    def _count(self, report: ReportLine) -> None:
        # Only the newest is stored; of the others sums are enough.
        if self._last is None and self.last_time is None and report.time is not None:
            self.last_time = report.time - report.seconds
        self._last = report
        self._samples += report.samples * report.steps
        if report.is_leading:
            self._leading = report
            self._steps = min(self._steps + report.steps, MOST_STEPS)
            self._busy += report.seconds
            self._noise = report.noise or self._noise
            self._count_kind(report)

    def _count_kind(self, report: ReportLine) -> None:
        if report.batch is None or not report.seconds:
            return
        kind = report.batch, report.accumulation
        if kind != self._warm:
            # The first steps at a batch size also allocate memory and choose kernels, so they are
            # not timed.
            self._warm = kind
            return
        if kind in self._kinds or len(self._kinds) < MOST_KINDS:
            steps, seconds = self._kinds.get(kind, (0, 0.0))
            self._kinds[kind] = (
                min(steps + report.steps, MOST_STEPS),
                seconds + report.seconds,
            )

    def _seconds(self, last: ReportLine) -> float:
        """Return the time since the previous interval, at least the duration of the steps."""
        if last.time is not None and self.last_time is not None and last.time > self.last_time:
            return last.time - self.last_time
        return max(self._busy, 1e-3)
