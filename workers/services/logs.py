"""Logs of members: rows of fetched offsets, text without cut characters, and search of lines.

``scheduling.storage`` stores the bytes of a log under ``<job>/<attempt>/<role>-<rank>.log``.
"""

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from workers.models import LogStream
from workers.services.dispatch import MemberRef

LONGEST_CHARACTER: Final = 4
MOST_HITS: Final = 200
LONGEST_HIT: Final = 1000
_LEAD: Final = 200
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def unfinished(data: bytes) -> int:
    """Return the number of bytes at the end of ``data`` that may be an incomplete character."""
    for back in range(1, min(LONGEST_CHARACTER, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            return back if back < _length(byte) else 0
    return 0


def continued(before: bytes, data: bytes) -> int:
    """Return the number of first bytes that complete a character begun in ``before``."""
    open_bytes = unfinished(before)
    if not open_bytes:
        return 0
    wanted = _length(before[-open_bytes]) - open_bytes
    missing = 0
    while missing < min(wanted, len(data)) and 0x80 <= data[missing] < 0xC0:
        missing += 1
    return missing if missing == wanted else 0


def decode(data: bytes) -> str:
    """Return ``data`` as text; invalid UTF-8 and NUL become U+FFFD."""
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _length(first_byte: int) -> int:
    if first_byte >= 0xF0:
        return 4
    return 3 if first_byte >= 0xE0 else 2


def relative_path(job_id: int, attempt_number: int, role: str, rank: int) -> str:
    """Return the path of a member's log in the storage."""
    return f"{job_id}/{attempt_number}/{role}-{rank}.log"


def path_of(rank: MemberRef) -> str:
    """Return the path of the rank's log in the storage."""
    return relative_path(rank.job_id, rank.attempt_number, rank.role, rank.rank)


def open_log(rank: MemberRef) -> None:
    """Create the row of the rank's log if it is missing."""
    LogStream.objects.get_or_create(
        member_id=rank.member_id, defaults={"job_id": rank.job_id, "path": path_of(rank)}
    )


def keep_log(rank: MemberRef, *, first: int, end: int, closed: bool) -> None:
    """Store the fetched range of a log; a closed log does not change."""
    open_log(rank)
    LogStream.objects.filter(member_id=rank.member_id, closed=False).update(
        first=first, end=end, closed=closed, host=socket.gethostname()
    )


def close_logs(ends: Mapping[MemberRef, tuple[int, int]]) -> None:
    """Mark these logs as complete, with their first and end offsets."""
    known = set(
        LogStream.objects.filter(member_id__in=[rank.member_id for rank in ends]).values_list(
            "member_id", flat=True
        )
    )
    LogStream.objects.bulk_create(
        LogStream(
            member_id=rank.member_id,
            job_id=rank.job_id,
            path=path_of(rank),
            first=first,
            end=end,
            closed=True,
            host=socket.gethostname(),
        )
        for rank, (first, end) in ends.items()
        if rank.member_id not in known
    )
    for rank, (first, end) in ends.items():
        if rank.member_id in known:
            keep_log(rank, first=first, end=end, closed=True)


@dataclass(frozen=True, slots=True)
class LogHit:
    """A matching line: the offset of its first byte, and at most 1,000 characters."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Searched:
    """Search result for one range.

    Attributes:
        hits: the lines, in their order.
        used: number of searched bytes.
    """

    hits: tuple[LogHit, ...]
    used: int


def search(data: bytes, wanted: str, *, offset: int, limit: int, is_last: bool) -> Searched:
    """Return the lines of ``data`` that contain ``wanted``, in upper or lower case.

    Args:
        data: a range that starts at the beginning of a line.
        wanted: words of one line.
        offset: offset of the first byte of ``data``, for those of the hits.
        limit: requested bytes; a line longer than this is searched in pieces.
        is_last: nothing follows, so the last line is complete without a line break.
    """
    end = len(data) if is_last else data.rfind(b"\n") + 1
    if not end and len(data) > limit - LONGEST_CHARACTER:
        end = len(data)
    wanted = wanted.casefold()
    hits: list[LogHit] = []
    for begin, after in _lines(data, end):
        line = _ESCAPES.sub("", decode(data[begin:after]).rstrip("\r\n"))
        place = line.casefold().find(wanted)
        if place < 0:
            continue
        lead = max(0, place - _LEAD) if len(line) > LONGEST_HIT else 0
        hits.append(LogHit(offset + begin, line[lead : lead + LONGEST_HIT]))
        if len(hits) == MOST_HITS:
            return Searched(tuple(hits), after)
    return Searched(tuple(hits), end)


def _lines(data: bytes, end: int) -> Iterator[tuple[int, int]]:
    """Return the offsets of the beginning of each line and of the next one."""
    begin = 0
    while begin < end:
        newline = data.find(b"\n", begin, end)
        after = end if newline < 0 else newline + 1
        yield begin, after
        begin = after
