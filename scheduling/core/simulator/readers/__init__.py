"""Readers of traces: pure functions from text to jobs, one module per format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from scheduling.core.simulator.errors import SimulationError, TraceError
from scheduling.core.simulator.readers import pollux, sia
from scheduling.core.simulator.traces import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """One format of traces.

    Attributes:
        read: from the text and the file's name.
        columns: a header with all of these is of this format; empty: it is never guessed.
    """

    read: Callable[[str, str], Trace]
    columns: tuple[str, ...] = ()


FORMATS: Final[Mapping[str, TraceFormat]] = MappingProxyType(
    {
        "sia": TraceFormat(read=sia.read_sia, columns=sia.COLUMNS),
        "pollux": TraceFormat(read=pollux.read_pollux),
    }
)


def read_trace(text: str, source: str, format_name: str = "auto") -> Trace:
    """The trace in ``text``.

    Args:
        text: the whole file.
        source: its name, for errors.
        format_name: one of ``FORMATS``, or ``auto`` to tell it from the header.

    Raises:
        TraceError: the file is malformed or holds no job.
        SimulationError: there is no such format.
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
        raise TraceError(source, 0, "holds no job")
    return trace


def _guess(text: str, source: str) -> str:
    """The format whose columns the header has, the one with most columns first."""
    header = {cell.strip().lstrip("\ufeff") for cell in text.partition("\n")[0].split(",")}
    fitting = [
        name
        for name, known in FORMATS.items()
        if known.columns and header.issuperset(known.columns)
    ]
    if not fitting:
        raise TraceError(
            source,
            1,
            f"is of no known format; name one of {', '.join(sorted(FORMATS))}",
        )
    return max(fitting, key=lambda name: len(FORMATS[name].columns))
