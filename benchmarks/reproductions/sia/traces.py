"""Workloads of Sia's artefact (SOSP '23): one row per job, named by application."""

from typing import Final

from scheduling.core.policy_interface import Kind
from scheduling.core.workloads.readers import TraceFormat
from scheduling.core.workloads.tables import Row, read_rows
from scheduling.core.workloads.traces import Trace, TraceJob

_COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")
_KINDS: Final = {
    "adaptive": Kind.ADAPTIVE,
    "scale-gpus": Kind.ELASTIC,
    "rigid": Kind.RIGID,
}


def read_sia(text: str, source: str) -> Trace:
    """Read the jobs of a workload.

    Raises:
        TraceError: a line is malformed, or two jobs have one name.
    """
    jobs: list[TraceJob] = []
    seen: set[str] = set()
    for row in read_rows(text, source, required=_COLUMNS, optional=("category",)):
        job = _job(row)
        if job.name in seen:
            raise row.fault(f"name is {job.name!r}, as in a line before")
        seen.add(job.name)
        jobs.append(job)
    return Trace(name=source, format="sia", jobs=tuple(jobs))


def _job(row: Row) -> TraceJob:
    category = row.text("category") if row.has("category") else "adaptive"
    if category not in _KINDS:
        raise row.fault(f"category is {category!r}; use {', '.join(_KINDS)}")
    return TraceJob(
        name=row.text("name"),
        submitted=row.number("time", minimum=0.0),
        devices=row.whole("num_replicas", minimum=1),
        application=row.text("application"),
        batch=row.whole("batch_size", minimum=1),
        kind=_KINDS[category],
    )


#: The trace format ``sia``.
FORMAT: Final = TraceFormat(read=read_sia, headers=(_COLUMNS,))
