"""Bytes of a log as text, cut only between characters."""

from typing import Final

LONGEST_CHARACTER: Final = 4


def unfinished(data: bytes) -> int:
    """Return how many bytes at the end of ``data`` may begin one more character."""
    for back in range(1, min(LONGEST_CHARACTER, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            return back if back < _length(byte) else 0
    return 0


def continued(before: bytes, data: bytes) -> int:
    """Return how many bytes at the start of ``data`` finish a character begun in ``before``."""
    open_bytes = unfinished(before)
    if not open_bytes:
        return 0
    wanted = _length(before[-open_bytes]) - open_bytes
    missing = 0
    while missing < min(wanted, len(data)) and 0x80 <= data[missing] < 0xC0:
        missing += 1
    return missing if missing == wanted else 0


def decode(data: bytes) -> str:
    """Return ``data`` as text; invalid UTF-8 becomes U+FFFD, and NUL likewise."""
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _length(first_byte: int) -> int:
    if first_byte >= 0xF0:
        return 4
    return 3 if first_byte >= 0xE0 else 2
