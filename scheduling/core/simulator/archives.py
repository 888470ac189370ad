"""The text of a trace, whether it is packed or not."""

import zipfile
import zlib
from io import BytesIO
from typing import Final

from scheduling.core.simulator.errors import TraceError

_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK"
_PIECE: Final = 1 << 20


def text_of(content: bytes, source: str, *, most: int) -> str:
    """Return the text of a plain, gzip or zip file; a zip file must contain one file.

    Args:
        content: the whole file.
        source: its name, for errors.
        most: maximum unpacked bytes.

    Raises:
        TraceError: cut off, damaged, larger than ``most`` bytes unpacked, or not valid UTF-8.
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
        raise TraceError(source, line, "holds bytes that are no UTF-8 text") from error


def _gunzipped(content: bytes, source: str, most: int) -> bytes:
    """All members of a gzip file."""
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
                source, found.count(b"\n") + 1, "the packed file is damaged here"
            ) from error
        if not unpacking.eof:
            raise TraceError(source, found.count(b"\n") + 1, "the packed file is cut off here")
        content = unpacking.unused_data
    return bytes(found)


def _unzipped(content: bytes, source: str, most: int) -> bytes:
    """The only file in a zip file."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            names = [item for item in archive.infolist() if not item.is_dir()]
            if len(names) != 1:
                raise TraceError(source, 0, f"holds {len(names)} files; use one")
            with archive.open(names[0]) as file:
                found = file.read(most + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        raise TraceError(
            source, 0, f"cannot be unpacked: it is cut off, damaged or locked ({error})"
        ) from error
    if len(found) > most:
        raise TraceError(source, 0, f"unpacks to more than {most} bytes")
    return found
