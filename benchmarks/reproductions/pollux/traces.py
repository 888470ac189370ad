"""Workloads of Pollux's artefact (OSDI '21): one training run per line."""

from typing import Final

from benchmarks.reproductions.pollux.jobs import PROGRAMS
from scheduling.core.policy_interface import Kind
from scheduling.core.workloads.readers import TraceFormat
from scheduling.core.workloads.tables import Row, read_jobs, read_rows
from scheduling.core.workloads.traces import Trace, TraceJob

_COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")


def read_pollux(text: str, source: str) -> Trace:
    """Read the jobs of a workload.

    Args:
        text: a table with the columns ``name``, ``time`` (seconds), ``application``,
            ``num_replicas`` and ``batch_size``.
        source: name of the file, for errors.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or a name is
            repeated.
    """
    rows = read_rows(text, source, required=_COLUMNS, optional=())
    return read_jobs(rows, source, "pollux", _job)


def _job(row: Row) -> TraceJob:
    application = row.text("application")
    if application not in PROGRAMS:
        raise row.fault(f"application is {application!r}; use one of {', '.join(PROGRAMS)}")
    devices = row.whole("num_replicas", minimum=1)
    if devices > 1 and not PROGRAMS[application].adapts:
        raise row.fault(f"num_replicas is {devices}; {application} runs on one device")
    return TraceJob(
        name=row.text("name"),
        submitted=row.number("time", minimum=0.0),
        devices=devices,
        application=application,
        batch=row.whole("batch_size", minimum=PROGRAMS[application].initial_batch),
        kind=Kind.ADAPTIVE,
    )


#: The trace format ``pollux``. Its header is that of ``sia``, so it is never detected.
FORMAT: Final = TraceFormat(read=read_pollux)
