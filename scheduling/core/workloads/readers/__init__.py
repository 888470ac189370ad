"""Readers of traces: from the content of a file to jobs."""

import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Final

from scheduling.core.workloads.readers.cluster_logs import (
    CHRONUS_COLUMNS,
    ITP_COLUMNS,
    ITP_OTHER_COLUMNS,
    MURI_COLUMNS,
    OPENB_COLUMNS,
    PHILLY_COLUMNS,
    read_chronus,
    read_itp,
    read_muri,
    read_openb,
    read_philly,
)
from scheduling.core.workloads.readers.experiments import (
    CRIUS_COLUMNS,
    is_gavel,
    read_crius,
    read_gavel,
)
from scheduling.core.workloads.traces import SimulationError, Trace, TraceError

_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK"
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """One format of traces.

    Attributes:
        read: parser of the text, with the file's name.
        headers: sets of columns, each of which identifies this format; if empty, the format is
            never detected from columns.
    """

    read: Callable[[str, str], Trace]
    headers: tuple[tuple[str, ...], ...] = ()


FORMATS: Final[Mapping[str, TraceFormat]] = MappingProxyType(
    {
        "itp": TraceFormat(read=read_itp, headers=(ITP_COLUMNS, ITP_OTHER_COLUMNS)),
        "philly": TraceFormat(read=read_philly, headers=(PHILLY_COLUMNS,)),
        "gavel": TraceFormat(read=read_gavel),
        "openb": TraceFormat(read=read_openb, headers=(OPENB_COLUMNS,)),
        "chronus": TraceFormat(read=read_chronus, headers=(CHRONUS_COLUMNS,)),
        "muri": TraceFormat(read=read_muri, headers=(MURI_COLUMNS,)),
        "crius": TraceFormat(read=read_crius, headers=(CRIUS_COLUMNS,)),
    }
)


def read_trace(
    text: str,
    source: str,
    format_name: str = "auto",
    formats: Mapping[str, TraceFormat] = FORMATS,
) -> Trace:
    """Parse the trace in ``text``.

    Args:
        text: content of the file.
        source: name of the file, for errors.
        format_name: one of ``formats``, or ``auto`` to detect it from the header.
        formats: the known formats by name.

    Raises:
        TraceError: the file is malformed or contains no job.
        SimulationError: the format is unknown.
    """
    if format_name == "auto":
        format_name = _guess(text, source, formats)
    known = formats.get(format_name)
    if known is None:
        raise SimulationError(
            f"unknown format {format_name!r}; use one of auto, {', '.join(sorted(formats))}"
        )
    trace = known.read(text, source)
    if not trace.jobs:
        raise TraceError(source, 0, "contains no jobs" + _reasons(trace))
    return trace


def _reasons(trace: Trace) -> str:
    """Describe the reasons why none of the lines is a job."""
    found = ", ".join(f"{count} {reason}" for reason, count in trace.left_out.items())
    return f" that can be simulated: {found}" if found else ""


def _guess(text: str, source: str, formats: Mapping[str, TraceFormat]) -> str:
    """Detect the format whose columns the header has; formats with more columns come first."""
    first = text.partition("\n")[0]
    if is_gavel(first):
        return "gavel"
    header = {cell.strip().lstrip("\ufeff") for cell in first.split(",")}
    fitting = [
        (len(columns), name)
        for name, known in formats.items()
        for columns in known.headers
        if header.issuperset(columns)
    ]
    if not fitting:
        raise TraceError(
            source,
            1,
            f"has an unknown format; specify one of {', '.join(sorted(formats))}",
        )
    return max(fitting)[1]


def text_of(content: bytes, source: str, *, most: int) -> str:
    """Decode the text of a plain, gzip or zip file; a zip file must contain one file.

    Args:
        content: bytes of the file.
        source: name of the file, for errors.
        most: maximum unpacked bytes.

    Raises:
        TraceError: the file is truncated, damaged, larger than ``most`` bytes unpacked, or not
            valid UTF-8.
    """
    if content.startswith(_GZIP):
        content = _gunzipped(content, source, most)
    elif content.startswith(_ZIP):
        content = _unzipped(content, source, most)
    if len(content) > most:
        raise TraceError(source, 0, f"is larger than {most} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TraceError(source, line, "is not valid UTF-8") from error


def _gunzipped(content: bytes, source: str, most: int) -> bytes:
    """Decompress all members of a gzip file."""
    found = bytearray()
    while content:
        unpacking = zlib.decompressobj(wbits=31)
        try:
            while content and not unpacking.eof:
                found += unpacking.decompress(content, _PIECE)
                content = unpacking.unconsumed_tail
                if len(found) > most:
                    raise TraceError(source, 0, f"unpacks to more than {most} bytes")
        except zlib.error as error:
            raise TraceError(
                source, found.count(b"\n") + 1, "the compressed file is damaged here"
            ) from error
        if not unpacking.eof:
            raise TraceError(
                source, found.count(b"\n") + 1, ("the compressed file is truncated here")
            )
        content = unpacking.unused_data
    return bytes(found)


def _unzipped(content: bytes, source: str, most: int) -> bytes:
    """Decompress the only file in a zip file."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            names = [item for item in archive.infolist() if not item.is_dir()]
            if len(names) != 1:
                raise TraceError(
                    source, 0, (f"contains {len(names)} files; use an archive with one file")
                )
            with archive.open(names[0]) as file:
                found = file.read(most + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        raise TraceError(
            source, 0, f"cannot be unpacked: it is truncated, damaged or encrypted ({error})"
        ) from error
    if len(found) > most:
        raise TraceError(source, 0, f"unpacks to more than {most} bytes")
    return found
