"""Workloads of the Pollux experiments (OSDI '21): one training run of a known program a line."""

from typing import Final

from scheduling.core.policy_interface import Kind
from scheduling.core.simulator.rules.pollux_jobs import PROGRAMS
from scheduling.core.simulator.tables import Row, read_rows
from scheduling.core.simulator.traces import Trace, TraceJob

_COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")


def read_pollux(text: str, source: str) -> Trace:
    """Return the workload in ``text``.

    Args:
        text: a table with the columns ``name``, ``time`` (seconds), ``application``,
            ``num_replicas`` and ``batch_size``.
        source: the file's name, for errors.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or a name is
            repeated.
    """
    jobs: list[TraceJob] = []
    lines: dict[str, int] = {}
    for row in read_rows(text, source, required=_COLUMNS, optional=()):
        job = _job(row)
        if job.name in lines:
            raise row.fault(f"the job {job.name} stands in line {lines[job.name]} already")
        lines[job.name] = row.line
        jobs.append(job)
    return Trace(name=source, format="pollux", jobs=tuple(jobs))


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
