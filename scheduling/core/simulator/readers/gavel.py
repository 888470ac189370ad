"""Traces of Gavel (OSDI '20) and Shockwave (NSDI '23): one job a line, no header, tabs between.

The number of cells of a line distinguishes three layouts. A line gives a job's number of steps;
their duration comes from the artefact's table of throughputs, among the profiles. Commands are
never run or stored.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from scheduling.core.simulator.errors import TraceError
from scheduling.core.simulator.readers import lines
from scheduling.core.simulator.tables import Row
from scheduling.core.simulator.traces import Trace, TraceJob

_HEAD: Final = ("job_type", "command")
_LAYOUTS: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        7: (*_HEAD, "step_argument", "needs_data", "total_steps", "arrival", "scale_factor"),
        10: (
            *(*_HEAD, "directory", "step_argument", "needs_data"),
            *("total_steps", "scale_factor", "priority", "slo", "arrival"),
        ),
        12: (
            *(*_HEAD, "directory", "step_argument", "needs_data", "total_steps", "scale_factor"),
            *("mode", "priority", "slo", "duration", "arrival"),
        ),
    }
)
_TYPE: Final = re.compile(r".+ \(batch size ([0-9]{1,9})\)")


def read_gavel(text: str, source: str) -> Trace:
    """The jobs; they have no names, so a job is called after its line.

    Raises:
        TraceError: a line has another number of cells than all layouts, or than the first line,
            or a value is out of bounds.
    """
    return lines.read_jobs(_rows(text, source), source, "gavel", _job)


def is_gavel(header: str) -> bool:
    """Whether a first line looks like one of these layouts."""
    return header.count("\t") + 1 in _LAYOUTS


def _rows(text: str, source: str) -> Iterator[Row]:
    width = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        cells = line.split("\t")
        width = width or len(cells)
        if len(cells) not in _LAYOUTS or len(cells) != width:
            wanted = width if width in _LAYOUTS else "7, 10 or 12"
            raise TraceError(
                source, number, f"has {len(cells)} cells with tabs between; use {wanted}"
            )
        yield Row(source, number, dict(zip(_LAYOUTS[width], cells, strict=True)))


def _job(row: Row) -> TraceJob:
    job_type = row.text("job_type")
    found = _TYPE.fullmatch(job_type)
    submitted = lines.seconds(row, "arrival")
    slo = row.number("slo", maximum=lines.MOST_SECONDS) if row.has("slo") else -1.0
    duration = lines.seconds(row, "duration") if "duration" in row.cells else None
    mode = row.cells.get("mode", "")[:40]
    return TraceJob(
        name=f"line-{row.line}",
        submitted=submitted,
        devices=lines.devices(row, "scale_factor"),
        duration=duration,
        steps=row.number("total_steps", minimum=0.0, maximum=lines.MOST_STEPS),
        application=job_type,
        batch=int(found[1]) if found and int(found[1]) else None,
        deadline=submitted + slo * duration if slo > 0.0 and duration is not None else None,
        extra=MappingProxyType({"slo": slo, "mode": mode}),
    )
