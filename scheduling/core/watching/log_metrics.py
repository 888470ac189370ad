"""Metrics in logs: numbers that RE2 patterns find in lines, in linear time."""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

import re2

from scheduling.core.watching.log_rules import (
    LONGEST_LINE,
    MOST_MEMORY,
    SECONDS_A_BYTE,
    SPARE_SECONDS,
    Pattern,
    PatternError,
)

MOST_METRICS: Final = 20
MOST_AT_ONCE: Final = 2_000
"""Numbers of a metric in one piece of a log."""
LARGEST_STEP: Final = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMetric:
    """A metric in the log of a job.

    Attributes:
        name: name of the metric.
        pattern: its first group, or the group ``value``, is the number; a group ``step`` the step.
    """

    name: str
    pattern: str


class LogNumber(NamedTuple):
    """A number in a log."""

    name: str
    step: int
    value: float


class NumberPattern:
    """A compiled pattern with a group for the number; safe to share between threads."""

    def __init__(self, text: str) -> None:
        """Compile the pattern.

        Raises:
            PatternError: RE2 does not accept it, it needs too much memory, or it has no group.
        """
        Pattern(text)
        options = re2.Options()
        options.max_mem = MOST_MEMORY
        options.never_nl = True
        options.log_errors = False
        try:
            self._compiled = re2.compile(f"(?m){text}".encode(), options)
        except re2.error as error:
            raise PatternError(str(error)) from None
        names = {_text(name): number for name, number in self._compiled.groupindex.items()}
        self._step = names.get("step")
        others = [number for number in range(1, self._compiled.groups + 1) if number != self._step]
        self._value = names.get("value") or next(iter(others), None)
        if self._value is None:
            raise PatternError("a group in brackets must match the number, as in loss=([0-9.]+)")

    def find(self, lines: bytes) -> Iterator[tuple[int, int | None, float]]:
        """Yield position, step and number of each match; the step is None without its group."""
        for found in self._compiled.finditer(lines):
            number = _number(found.group(self._value))
            step = _number(found.group(self._step)) if self._step else None
            if number is not None:
                is_step = step is not None and 0 <= step <= LARGEST_STEP
                yield found.start(), int(step) if step is not None and is_step else None, number


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _number(found: bytes | None) -> float | None:
    try:
        return float(found.replace(b",", b"")) if found and len(found) < 64 else None
    except ValueError:
        return None


class NumberScanner:
    """Reads the metrics of one log, piece by piece.

    A number without a step gets the newest step that any pattern found, or the count of the
    numbers of its metric if none found any.
    """

    def __init__(
        self, metrics: Sequence[tuple[LogMetric, NumberPattern]], *, clock: Callable[[], float]
    ) -> None:
        """Start at any position of a log.

        Args:
            metrics: with their patterns, which may be shared.
            clock: the CPU time of the calling thread in seconds.
        """
        self._metrics = list(metrics)
        self._clock = clock
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._read = 0
        self._rest = b""
        self._next = 0
        self._step: int | None = None

    def feed(self, data: bytes, offset: int) -> tuple[LogNumber, ...]:
        """Return the numbers in the lines that end in this piece.

        Args:
            data: the piece.
            offset: its start; after a gap the rest of a line is dropped.
        """
        if not self._metrics:
            return ()
        whole = (self._rest if offset == self._next else b"") + data
        self._next = offset + len(data)
        end = whole.rfind(b"\n") + 1
        self._rest = whole[end:][:LONGEST_LINE]
        return tuple(self._look(whole[:end]))

    def finish(self) -> tuple[LogNumber, ...]:
        """Read the last line, which has no line end."""
        rest, self._rest = self._rest, b""
        return tuple(self._look(rest)) if self._metrics else ()

    def _look(self, text: bytes) -> Iterator[LogNumber]:
        self._read += len(text)
        lines = b"\n".join(line[:LONGEST_LINE].rstrip(b"\r") for line in text.split(b"\n"))
        readable = lines.decode("utf-8", "replace").encode()
        ends = [found.start() for found in re.finditer(b"\n", readable)]
        numbers = [
            (bisect(ends, at), step is None, at, step, name, value)
            for name, at, step, value in self._numbers(readable)
        ]
        # In each line, numbers with a step come first, so that it counts for the others.
        for _, _, _, step, name, value in sorted(numbers, key=itemgetter(0, 1, 2)):
            self._step = step if step is not None else self._step
            self._counts[name] += 1
            yield LogNumber(name, self._counts[name] if self._step is None else self._step, value)

    def _numbers(self, readable: bytes) -> Iterator[tuple[str, int, int | None, float]]:
        for metric, pattern in list(self._metrics):
            started = self._clock()
            found = list(islice(pattern.find(readable), MOST_AT_ONCE))
            self._spent[metric.name] += self._clock() - started
            if self._spent[metric.name] > SPARE_SECONDS + SECONDS_A_BYTE * self._read:
                self._metrics.remove((metric, pattern))  # too slow in this log
            for at, step, value in found:
                yield metric.name, at, step, value
