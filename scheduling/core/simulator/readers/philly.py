"""Jobs of Microsoft's Philly clusters (ATC '19), as the Pollux artefact lists them."""

from dataclasses import replace
from datetime import datetime
from typing import Final

from scheduling.core.simulator.readers import lines
from scheduling.core.simulator.tables import Row, read_rows
from scheduling.core.simulator.traces import Trace, TraceJob

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
_START: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (the list's wall clock has no zone)


def read_philly(text: str, source: str) -> Trace:
    """The jobs; a virtual cluster is a tenant, and time 0 is the earliest timestamp.

    The list has no names: a job is called after its virtual cluster and its line.

    Raises:
        TraceError: a column is missing or unknown, or a value is out of bounds.
    """
    rows = read_rows(text, source, required=COLUMNS, optional=("gpu_time",))
    trace = lines.read_jobs(rows, source, "philly", _job)
    first = min((job.submitted for job in trace.jobs), default=0.0)
    moved = tuple(replace(job, submitted=job.submitted - first) for job in trace.jobs)
    return replace(trace, jobs=moved)


def _job(row: Row) -> TraceJob:
    stamp, tenant = row.text("timestamp"), row.text("cluster")
    try:
        submitted = (datetime.fromisoformat(stamp) - _START).total_seconds()
    except (TypeError, ValueError):
        raise row.fault(f"timestamp is {stamp[:40]!r}; use one as 2017-10-09 07:01:55") from None
    return TraceJob(
        name=f"{tenant}-{row.line}",
        submitted=submitted,
        devices=lines.devices(row, "num_gpus"),
        duration=lines.seconds(row, "duration"),
        tenant=tenant,
    )
