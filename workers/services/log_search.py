"""Search of log lines: pure, over one stretch of bytes at a time."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from workers.services import text

MOST_HITS: Final = 200
LONGEST_HIT: Final = 1000
_LEAD: Final = 200
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class LogHit:
    """A line with the words: the offset of its first byte, and at most 1,000 characters."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Searched:
    """Result for one stretch.

    Attributes:
        hits: the lines, in their order.
        used: bytes of the stretch that are done.
    """

    hits: tuple[LogHit, ...]
    used: int


def search(data: bytes, wanted: str, *, offset: int, limit: int, is_last: bool) -> Searched:
    """Return the lines of ``data`` that contain ``wanted``, in upper or lower case.

    Args:
        data: a stretch that begins where a line begins.
        wanted: words of one line.
        offset: of the first byte of ``data``, for those of the hits.
        limit: requested bytes; if all of them came without the end of a line, the line is
            searched in pieces.
        is_last: nothing follows, so the last line is whole without its end.
    """
    end = len(data) if is_last else data.rfind(b"\n") + 1
    if not end and len(data) > limit - text.LONGEST_CHARACTER:
        end = len(data)
    wanted = wanted.casefold()
    hits: list[LogHit] = []
    for begin, after in _lines(data, end):
        line = _ESCAPES.sub("", text.decode(data[begin:after]).rstrip("\r\n"))
        place = line.casefold().find(wanted)
        if place < 0:
            continue
        lead = max(0, place - _LEAD) if len(line) > LONGEST_HIT else 0
        hits.append(LogHit(offset + begin, line[lead : lead + LONGEST_HIT]))
        if len(hits) == MOST_HITS:
            return Searched(tuple(hits), after)
    return Searched(tuple(hits), end)


def _lines(data: bytes, end: int) -> Iterator[tuple[int, int]]:
    """Offsets of the beginning of each line and of the next one."""
    begin = 0
    while begin < end:
        newline = data.find(b"\n", begin, end)
        after = end if newline < 0 else newline + 1
        yield begin, after
        begin = after
