"""Jobs of Crius (EuroSys '26): models of billions of parameters, with iterations on a type.

Their durations come from the artefact's table of iteration times, among the profiles.
"""

from typing import Final

from scheduling.core.simulator.readers import lines
from scheduling.core.simulator.tables import Row, read_rows
from scheduling.core.simulator.traces import Trace, TraceJob

COLUMNS: Final = (
    "job_id",
    "submission_time",
    "num_iteration",
    "model_name",
    "batch_size",
    "num_gpu",
    "gpu_type",
)


def read_crius(text: str, source: str) -> Trace:
    """The jobs, in the order of the file; times in seconds on the trace's own clock.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or an id is repeated.
    """
    rows = read_rows(text, source, required=COLUMNS, optional=("deadline",))
    return lines.read_jobs(rows, source, "crius", _job)


def _job(row: Row) -> TraceJob:
    return TraceJob(
        name=row.text("job_id"),
        submitted=lines.seconds(row, "submission_time"),
        devices=lines.devices(row, "num_gpu"),
        steps=row.number("num_iteration", minimum=0.0, maximum=lines.MOST_STEPS),
        application=row.text("model_name"),
        batch=row.whole("batch_size", minimum=1),
        deadline=lines.optional_seconds(row, "deadline"),
        types=(row.text("gpu_type"),),
    )
