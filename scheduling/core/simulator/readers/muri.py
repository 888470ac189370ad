"""Jobs of Muri (SIGCOMM '22), derived from Philly: all times in milliseconds."""

from types import MappingProxyType
from typing import Final

from scheduling.core.simulator.readers import lines
from scheduling.core.simulator.tables import Row, read_rows
from scheduling.core.simulator.traces import Trace, TraceJob

COLUMNS: Final = (
    "job_id",
    "num_gpu",
    "submit_time",
    "duration",
    "iterations",
    "model_name",
    "batch_size",
    "iteration_time",
)
_STAGES: Final = ("resource_time_0", "resource_time_1", "resource_time_2")
_MILLI: Final = 1e-3


def read_muri(text: str, source: str) -> Trace:
    """The jobs; the step's time on each resource is in ``stages``, in seconds.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or an id is repeated.
    """
    rows = read_rows(text, source, required=COLUMNS, optional=(*_STAGES, "interval", "priority"))
    return lines.read_jobs(rows, source, "muri", _job)


def _job(row: Row) -> TraceJob:
    stages = [lines.seconds(row, column, unit=_MILLI) for column in _STAGES if row.has(column)]
    return TraceJob(
        name=row.text("job_id"),
        submitted=lines.seconds(row, "submit_time", unit=_MILLI),
        devices=lines.devices(row, "num_gpu"),
        duration=lines.seconds(row, "duration", unit=_MILLI),
        steps=lines.steps(row, "iterations"),
        application=row.text("model_name"),
        batch=lines.batch(row, "batch_size"),
        extra=MappingProxyType({"stages": tuple(stages)}),
    )
