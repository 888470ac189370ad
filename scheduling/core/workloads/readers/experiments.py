"""Readers of the workloads of Gavel and Crius: training runs of named applications."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from scheduling.core.workloads.tables import (
    MOST_SECONDS,
    MOST_STEPS,
    Row,
    read_jobs,
    read_rows,
)
from scheduling.core.workloads.traces import Trace, TraceError, TraceJob

_GAVEL_HEAD: Final = ("job_type", "command")
_GAVEL_LAYOUTS: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        7: (*_GAVEL_HEAD, "step_argument", "needs_data", "total_steps", "arrival", "scale_factor"),
        10: (
            *(*_GAVEL_HEAD, "directory", "step_argument", "needs_data"),
            *("total_steps", "scale_factor", "priority", "slo", "arrival"),
        ),
        12: (
            *(
                *_GAVEL_HEAD,
                "directory",
                "step_argument",
                "needs_data",
                "total_steps",
                "scale_factor",
            ),
            *("mode", "priority", "slo", "duration", "arrival"),
        ),
    }
)
_GAVEL_TYPE: Final = re.compile(r".+ \(batch size ([0-9]{1,9})\)")

CRIUS_COLUMNS: Final = (
    "job_id",
    "submission_time",
    "num_iteration",
    "model_name",
    "batch_size",
    "num_gpu",
    "gpu_type",
)


def read_gavel(text: str, source: str) -> Trace:
    """Read traces of Gavel (OSDI '20) and Shockwave (NSDI '23): tab-separated, no header.

    The number of cells of a line distinguishes three layouts. A line gives a job's number of
    steps; their duration comes from the artefact's table of throughputs, among the profiles.
    Commands are never run or stored. A job gets its name from its line.

    Raises:
        TraceError: a line has another number of cells than all layouts, or than the first line,
            or a value is out of bounds.
    """
    return read_jobs(_gavel_rows(text, source), source, "gavel", _gavel_job)


def is_gavel(header: str) -> bool:
    """Return whether a first line matches one of these layouts."""
    return header.count("\t") + 1 in _GAVEL_LAYOUTS


def _gavel_rows(text: str, source: str) -> Iterator[Row]:
    width = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        cells = line.split("\t")
        width = width or len(cells)
        if len(cells) not in _GAVEL_LAYOUTS or len(cells) != width:
            wanted = width if width in _GAVEL_LAYOUTS else "7, 10 or 12"
            raise TraceError(
                source, number, f"has {len(cells)} cells with tabs between; use {wanted}"
            )
        yield Row(source, number, dict(zip(_GAVEL_LAYOUTS[width], cells, strict=True)))


def _gavel_job(row: Row) -> TraceJob:
    job_type = row.text("job_type")
    found = _GAVEL_TYPE.fullmatch(job_type)
    submitted = row.seconds("arrival")
    slo = row.number("slo", maximum=MOST_SECONDS) if row.has("slo") else -1.0
    duration = row.seconds("duration") if "duration" in row.cells else None
    mode = row.cells.get("mode", "")[:40]
    return TraceJob(
        name=f"line-{row.line}",
        submitted=submitted,
        devices=row.devices("scale_factor"),
        duration=duration,
        steps=row.number("total_steps", minimum=0.0, maximum=MOST_STEPS),
        application=job_type,
        batch=int(found[1]) if found and int(found[1]) else None,
        deadline=submitted + slo * duration if slo > 0.0 and duration is not None else None,
        extra=MappingProxyType({"slo": slo, "mode": mode}),
    )


def read_crius(text: str, source: str) -> Trace:
    """Read jobs of Crius (EuroSys '26): models of billions of parameters, with iterations.

    Their durations come from the artefact's table of iteration times, among the profiles. The type
    of a line is a preference: the artefact drew it at random, and Crius moves jobs to other types.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or an id is repeated.
    """
    rows = read_rows(text, source, required=CRIUS_COLUMNS, optional=("deadline",))
    return read_jobs(rows, source, "crius", _crius_job)


def _crius_job(row: Row) -> TraceJob:
    return TraceJob(
        name=row.text("job_id"),
        submitted=row.seconds("submission_time"),
        devices=row.devices("num_gpu"),
        steps=row.number("num_iteration", minimum=0.0, maximum=MOST_STEPS),
        application=row.text("model_name"),
        batch=row.whole("batch_size", minimum=1),
        deadline=row.optional_seconds("deadline"),
        wish=row.text("gpu_type"),
    )
