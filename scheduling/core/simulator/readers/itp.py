"""Jobs of Microsoft's ITP clusters as ElasticFlow (ASPLOS '23) publishes them.

The plain files hold size and duration; those with deadlines name a model besides, and spell the
same columns in two ways.
"""

from typing import Final

from scheduling.core.simulator.readers import lines
from scheduling.core.simulator.tables import Row, read_rows
from scheduling.core.simulator.traces import Trace, TraceJob

COLUMNS: Final = ("job_id", "submission_time", "duration", "num_gpu")
OTHER_COLUMNS: Final = ("job_id", "submit_time", "duration", "num_gpu", "ddl")
_MODEL: Final = ("model_name", "batch_size")
_OPTIONAL: Final = (*_MODEL, "num_iteration", "deadline")
_OTHER_OPTIONAL: Final = (*_MODEL, "iteration", "real_iteration", "real_duration", "best_effort")


def read_itp(text: str, source: str) -> Trace:
    """The jobs, in the order of the file; times in seconds from the trace's start.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or an id is repeated.
    """
    header = text.partition("\n")[0]
    other = "submit_time" in header and "submission_time" not in header
    rows = read_rows(
        text,
        source,
        required=OTHER_COLUMNS if other else COLUMNS,
        optional=_OTHER_OPTIONAL if other else _OPTIONAL,
    )
    return lines.read_jobs(rows, source, "itp", _other_job if other else _job)


def _job(row: Row) -> TraceJob:
    return TraceJob(
        name=row.text("job_id"),
        submitted=lines.seconds(row, "submission_time"),
        devices=lines.devices(row, "num_gpu"),
        duration=lines.seconds(row, "duration"),
        steps=lines.steps(row, "num_iteration"),
        application=row.text("model_name") if row.has("model_name") else "",
        batch=lines.batch(row, "batch_size"),
        deadline=lines.optional_seconds(row, "deadline"),
    )


def _other_job(row: Row) -> TraceJob:
    best_effort = row.has("best_effort") and row.whole("best_effort", minimum=0, maximum=1) == 1
    return TraceJob(
        name=row.text("job_id"),
        submitted=lines.seconds(row, "submit_time"),
        devices=lines.devices(row, "num_gpu"),
        duration=lines.seconds(row, "duration"),
        steps=lines.steps(row, "iteration"),
        application=row.text("model_name") if row.has("model_name") else "",
        batch=lines.batch(row, "batch_size"),
        deadline=None if best_effort else lines.seconds(row, "ddl"),
    )
