"""Shared checks of the readers of recorded jobs: bounds of values, and unique names."""

from collections import Counter
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Final

from scheduling.core.simulator.tables import Row
from scheduling.core.simulator.traces import Trace, TraceJob

#: A gang of more devices than any cluster has is a slip of the pen.
MOST_DEVICES: Final = 1_000_000
#: Seconds; in larger values sums of times are no longer exact to the microsecond.
MOST_SECONDS: Final = 1e10
MOST_STEPS: Final = 1e15


def read_jobs(
    rows: Iterable[Row], source: str, name: str, read: Callable[[Row], TraceJob | str]
) -> Trace:
    """The trace of a table's rows.

    Args:
        rows: the lines of the file.
        source: its name.
        name: the format's name.
        read: returns a row's job, or in words why it cannot be simulated.

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
            raise row.fault(f"the job {job.name} stands in line {before} already")
        jobs.append(job)
    return Trace(
        name=source,
        format=name,
        jobs=tuple(jobs),
        left_out=MappingProxyType(dict(sorted(left_out.items()))),
    )


def devices(row: Row, column: str) -> int:
    """A gang's size."""
    return row.whole(column, minimum=1, maximum=MOST_DEVICES)


def seconds(row: Row, column: str, *, unit: float = 1.0) -> float:
    """A time of 0 or more; ``unit`` is its length in seconds."""
    return row.number(column, minimum=0.0, maximum=MOST_SECONDS / unit) * unit


def optional_seconds(row: Row, column: str) -> float | None:
    """A time, if present."""
    return seconds(row, column) if row.has(column) else None


def steps(row: Row, column: str) -> float | None:
    """Iterations, if present."""
    return row.number(column, minimum=0.0, maximum=MOST_STEPS) if row.has(column) else None


def batch(row: Row, column: str) -> int | None:
    """A total batch size, if present."""
    return row.whole(column, minimum=1) if row.has(column) else None
