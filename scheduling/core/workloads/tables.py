"""Tables of comma-separated values: each error names its line, and a line is one job."""

import csv
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from scheduling.core.workloads.traces import Trace, TraceError, TraceJob

#: A gang with more devices than any cluster has is a typing error.
MOST_DEVICES: Final = 1_000_000
#: Seconds; in larger values sums of times are no longer exact to the microsecond.
MOST_SECONDS: Final = 1e10
MOST_STEPS: Final = 1e15


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, by column."""

    source: str
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return the text of a column, which must not be empty."""
        value = self.cells.get(column, "").strip()
        if not value:
            raise TraceError(self.source, self.line, f"{column} is empty")
        return value

    def number(
        self, column: str, *, minimum: float = -math.inf, maximum: float = math.inf
    ) -> float:
        """Parse a finite number of at least ``minimum`` and at most ``maximum``."""
        value = self.text(column)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise TraceError(self.source, self.line, f"{column} is {value[:40]!r}; use a number")
        if number < minimum:
            raise TraceError(
                self.source, self.line, f"{column} is {value}; use at least {minimum:g}"
            )
        if number > maximum:
            raise TraceError(
                self.source, self.line, f"{column} is {value[:40]}; use at most {maximum:g}"
            )
        return number

    def whole(self, column: str, *, minimum: int, maximum: int = 10**12) -> int:
        """Parse an integer of at least ``minimum`` and at most ``maximum``."""
        number = self.number(column, minimum=minimum, maximum=maximum)
        if number != int(number):
            value = self.text(column)
            raise TraceError(self.source, self.line, f"{column} is {value}; use a whole number")
        return int(number)

    def has(self, column: str) -> bool:
        """Return whether a column is not empty."""
        return bool(self.cells.get(column, "").strip())

    def devices(self, column: str) -> int:
        """Parse the size of a gang."""
        return self.whole(column, minimum=1, maximum=MOST_DEVICES)

    def seconds(self, column: str, *, unit: float = 1.0) -> float:
        """Parse a non-negative time; ``unit`` is the length of its unit in seconds."""
        return self.number(column, minimum=0.0, maximum=MOST_SECONDS / unit) * unit

    def optional_seconds(self, column: str) -> float | None:
        """Parse a time, if present."""
        return self.seconds(column) if self.has(column) else None

    def steps(self, column: str) -> float | None:
        """Parse a number of iterations, if present."""
        return self.number(column, minimum=0.0, maximum=MOST_STEPS) if self.has(column) else None

    def batch(self, column: str) -> int | None:
        """Parse a total batch size, if present."""
        return self.whole(column, minimum=1) if self.has(column) else None

    def fault(self, message: str) -> TraceError:
        """Build an error that names this line."""
        return TraceError(self.source, self.line, message)


def read_rows(
    text: str,
    source: str,
    *,
    required: Collection[str],
    optional: Collection[str] | None = None,
) -> Iterator[Row]:
    """Yield the lines of a table with a header.

    Args:
        text: content of the file.
        source: name of the file, for errors.
        required: required columns.
        optional: further allowed columns; None for any.

    Raises:
        TraceError: a column is missing, unknown or named twice, or a line has too few or too
            many cells.
    """
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        header = _header(next(reader, []), source, required, optional)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise TraceError(
                    source, reader.line_num, f"has {len(cells)} cells; use {len(header)}"
                )
            yield Row(source, reader.line_num, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise TraceError(
            source, reader.line_num, f"is not a valid row of a table ({error})"
        ) from error


def _header(
    cells: list[str], source: str, required: Collection[str], optional: Collection[str] | None
) -> list[str]:
    header = [cell.strip().lstrip("\ufeff") for cell in cells]
    missing = [column for column in required if column not in header]
    if missing:
        raise TraceError(source, 1, f"has no column {', '.join(missing)}")
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise TraceError(source, 1, f"names the column {', '.join(twice)} twice")
    if optional is not None:
        unknown = [column for column in header if column not in {*required, *optional}]
        if unknown:
            known = ", ".join([*required, *optional])
            raise TraceError(
                source, 1, f"has the unknown column {', '.join(unknown)}; known columns: {known}"
            )
    return header


def read_jobs(
    rows: Iterable[Row], source: str, name: str, read: Callable[[Row], TraceJob | str]
) -> Trace:
    """Build the trace from a table's rows.

    Args:
        rows: the lines of the file.
        source: name of the file.
        name: name of the format.
        read: returns the job of a row, or the reason why it cannot be simulated.

    Raises:
        TraceError: a row is malformed, or two jobs have one name.
    """
    jobs: list[TraceJob] = []
    lines: dict[str, int] = {}
    left_out: Counter[str] = Counter()
    for row in rows:
        job = read(row)
        if isinstance(job, str):
            left_out[job] += 1
            continue
        before = lines.setdefault(job.name, row.line)
        if before != row.line:
            raise row.fault(f"job {job.name} is already in line {before}")
        jobs.append(job)
    return Trace(
        name=source,
        format=name,
        jobs=tuple(jobs),
        left_out=MappingProxyType(dict(sorted(left_out.items()))),
    )
