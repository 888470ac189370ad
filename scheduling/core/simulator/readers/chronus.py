"""Jobs with deadlines of Chronus (SoCC '21), derived from Philly: tenants, strict and soft."""

from types import MappingProxyType
from typing import Final

from scheduling.core.simulator.readers import lines
from scheduling.core.simulator.tables import Row, read_rows
from scheduling.core.simulator.traces import Trace, TraceJob

COLUMNS: Final = (
    "job_id",
    "user",
    "num_gpu",
    "submit_time",
    "duration",
    "expect_time_list",
    "job_type",
)
_OPTIONAL: Final = ("iterations", "model_name", "interval", "expect_value_list", "best_effort")
_TYPES: Final = ("strict", "soft", "best")


def read_chronus(text: str, source: str) -> Trace:
    """The jobs that had devices; ``user`` is a tenant, expected times count from the submission.

    A soft job's deadline is the first of its times, after which its value falls; all of them are
    in ``expected`` with their ``values``.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or an id is repeated.
    """
    rows = read_rows(text, source, required=COLUMNS, optional=_OPTIONAL)
    return lines.read_jobs(rows, source, "chronus", _job)


def _job(row: Row) -> TraceJob | str:
    if row.whole("num_gpu", minimum=0, maximum=lines.MOST_DEVICES) == 0:
        return "asks for no device"
    kind = row.text("job_type")
    if kind not in _TYPES:
        raise row.fault(f"job_type is {kind[:40]!r}; use {', '.join(_TYPES)}")
    submitted = lines.seconds(row, "submit_time")
    expected = _numbers(row, "expect_time_list") if kind != "best" else ()
    values = _numbers(row, "expect_value_list") if row.has("expect_value_list") else ()
    return TraceJob(
        name=row.text("job_id"),
        submitted=submitted,
        devices=lines.devices(row, "num_gpu"),
        duration=lines.seconds(row, "duration"),
        steps=lines.steps(row, "iterations"),
        application=row.text("model_name") if row.has("model_name") else "",
        tenant=row.text("user"),
        deadline=submitted + expected[0] if expected else None,
        extra=MappingProxyType({"job_type": kind, "expected": expected, "values": values}),
    )


def _numbers(row: Row, column: str) -> tuple[float, ...]:
    """Numbers with dashes between them."""
    cells = row.text(column).split("-")
    return tuple(
        Row(row.source, row.line, {column: cell}).number(
            column, minimum=0.0, maximum=lines.MOST_SECONDS
        )
        for cell in cells
    )
