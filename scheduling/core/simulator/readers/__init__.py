"""Readers of traces: pure functions from text to jobs, one module per format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from scheduling.core.simulator.errors import SimulationError, TraceError
from scheduling.core.simulator.readers import (
    chronus,
    crius,
    gavel,
    itp,
    muri,
    openb,
    philly,
    pollux,
    sia,
)
from scheduling.core.simulator.traces import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """One format of traces.

    Attributes:
        read: from the text and the file's name.
        headers: a header with all columns of one of these is of this format; empty: it is never
            guessed by columns.
    """

    read: Callable[[str, str], Trace]
    headers: tuple[tuple[str, ...], ...] = ()


FORMATS: Final[Mapping[str, TraceFormat]] = MappingProxyType(
    {
        "sia": TraceFormat(read=sia.read_sia, headers=(sia.COLUMNS,)),
        "pollux": TraceFormat(read=pollux.read_pollux),
        "itp": TraceFormat(read=itp.read_itp, headers=(itp.COLUMNS, itp.OTHER_COLUMNS)),
        "philly": TraceFormat(read=philly.read_philly, headers=(philly.COLUMNS,)),
        "gavel": TraceFormat(read=gavel.read_gavel),
        "openb": TraceFormat(read=openb.read_openb, headers=(openb.COLUMNS,)),
        "chronus": TraceFormat(read=chronus.read_chronus, headers=(chronus.COLUMNS,)),
        "muri": TraceFormat(read=muri.read_muri, headers=(muri.COLUMNS,)),
        "crius": TraceFormat(read=crius.read_crius, headers=(crius.COLUMNS,)),
    }
)


def read_trace(text: str, source: str, format_name: str = "auto") -> Trace:
    """Return the trace in ``text``.

    Args:
        text: the whole file.
        source: its name, for errors.
        format_name: one of ``FORMATS``, or ``auto`` to detect it from the header.

    Raises:
        TraceError: the file is malformed or contains no job.
        SimulationError: unknown format.
    """
    if format_name == "auto":
        format_name = _guess(text, source)
    known = FORMATS.get(format_name)
    if known is None:
        raise SimulationError(
            f"there is no format {format_name!r}; there are auto, {', '.join(sorted(FORMATS))}"
        )
    trace = known.read(text, source)
    if not trace.jobs:
        raise TraceError(source, 0, "holds no job" + _reasons(trace))
    return trace


def _reasons(trace: Trace) -> str:
    """Why none of the lines is a job."""
    found = ", ".join(f"{count} {reason}" for reason, count in trace.left_out.items())
    return f" that can be simulated: {found}" if found else ""


def _guess(text: str, source: str) -> str:
    """The format whose columns the header has, the one with most columns first."""
    first = text.partition("\n")[0]
    if gavel.is_gavel(first):
        return "gavel"
    header = {cell.strip().lstrip("\ufeff") for cell in first.split(",")}
    fitting = [
        (len(columns), name)
        for name, known in FORMATS.items()
        for columns in known.headers
        if header.issuperset(columns)
    ]
    if not fitting:
        raise TraceError(
            source,
            1,
            f"is of no known format; name one of {', '.join(sorted(FORMATS))}",
        )
    return max(fitting)[1]
