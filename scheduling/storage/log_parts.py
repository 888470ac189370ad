"""Logs in an object store: immutable parts named by their range, merged in levels.

An append stores one part ``<first>-<end>-<level>`` of level 0. Eight neighbours of one level are
merged into a part of the next level, and all parts of a full segment into one. A part is deleted
only after a part that contains its bytes has been stored. The bytes at an offset never change, so
two hosts that write the same log at the same time cannot harm each other: the log is the union of
all parts.
"""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scheduling.storage.base import (
    LOGS_DIR,
    OFFSET_DIGITS,
    SEGMENT_BYTES,
    Extent,
    LogRange,
    NotStoredError,
    StorageUnavailableError,
    checked_name,
)
from scheduling.storage.bucket import Bucket

log = logging.getLogger(__name__)

FAN_IN: Final = 8
"""Parts of one level that are merged; a segment of 4 Mi one-byte appends has up to 56 parts."""
MOST_KNOWN: Final = 4096
READ_ATTEMPTS: Final = 5
SEALED_LEVEL: Final = 9
_PART: Final = re.compile(rf"([0-9]{{{OFFSET_DIGITS}}})-([0-9]{{{OFFSET_DIGITS}}})-([0-9])")


@dataclass(frozen=True, slots=True, order=True)
class StoredPart:
    """One object: logical offsets from ``first`` up to ``end``; ``level`` counts its merges."""

    first: int
    end: int
    level: int

    @property
    def name(self) -> str:
        return f"{self.first:0{OFFSET_DIGITS}d}-{self.end:0{OFFSET_DIGITS}d}-{self.level}"


@dataclass(frozen=True, slots=True)
class _Piece:
    part: StoredPart
    first: int
    end: int


def parse_part(name: str) -> StoredPart | None:
    """Return the part of this name, or None for a foreign object."""
    match = _PART.fullmatch(name)
    if match is None or not int(match[1]) < int(match[2]):
        return None
    return StoredPart(int(match[1]), int(match[2]), int(match[3]))


def stored_extent(parts: Iterable[StoredPart]) -> Extent | None:
    """Return the last range without a gap; None without parts."""
    ordered = sorted(parts)
    if not ordered:
        return None
    first, end = ordered[0].first, ordered[0].end
    for part in ordered[1:]:
        if part.first > end:
            first = part.first
        end = max(end, part.end)
    return Extent(first, end)


def cover(parts: Iterable[StoredPart], first: int, end: int) -> list[_Piece]:
    """Return pieces that cover a range with few reads, up to the first gap."""
    pieces: list[_Piece] = []
    rest = sorted(parts)
    position = first
    while position < end:
        furthest = max(
            (part for part in rest if part.first <= position < part.end),
            key=lambda part: part.end,
            default=None,
        )
        if furthest is None:
            break
        stop = min(furthest.end, end)
        pieces.append(_Piece(furthest, position, stop))
        position = stop
    return pieces


def next_merge(parts: Sequence[StoredPart], *, segment_bytes: int) -> tuple[int, int, int] | None:
    """Choose the next merge at the end of a log: first and end offset, and level of the result.

    Returns:
        None if nothing has to be merged.
    """
    if not parts:
        return None
    ordered = sorted(parts)
    last = ordered[-1]
    start = last.first - last.first % segment_bytes
    inside = [part for part in ordered if part.first >= start]
    there = stored_extent(inside)
    if there is not None and there.end == start + segment_bytes and len(inside) > 1:
        return there.first, there.end, SEALED_LEVEL
    tail = inside[-FAN_IN:]
    if len(tail) < FAN_IN or {part.level for part in tail} != {last.level}:
        return None
    range_of_tail = stored_extent(tail)
    if last.level + 1 >= SEALED_LEVEL or range_of_tail is None:
        return None
    return range_of_tail.first, range_of_tail.end, last.level + 1


class ObjectLogs:
    """Logs as objects ``logs/<path>/<part>``."""

    def __init__(self, bucket: Bucket, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Args:
        bucket: the object store.
        segment_bytes: parts never cross a multiple of it.
        """
        self._bucket = bucket
        self._segment_bytes = segment_bytes
        self._known: OrderedDict[str, frozenset[StoredPart]] = OrderedDict()
        self._lock = threading.Lock()

    def extent(self, path: str, *, first: int = 0) -> Extent:
        parts = self._list(path)
        self._remember(path, parts)
        return _from(parts, first)

    def write(self, path: str, *, offset: int, data: bytes, cap_bytes: int) -> Extent:
        parts = self._parts(path)
        try:
            position = offset
            while position < offset + len(data):
                room = self._segment_bytes - position % self._segment_bytes
                end = min(position + room, offset + len(data))
                part = StoredPart(position, end, 0)
                if not _covers(parts, part):
                    content = data[position - offset : end - offset]
                    self._bucket.put(self._name(path, part), content)
                    parts |= {part}
                    parts = self._merge(path, parts)
                position = end
            parts = self._forget(path, parts, position - cap_bytes)
        except OSError:
            self._forget_known(path)
            raise
        self._remember(path, parts)
        return _from(parts, 0)

    def read(self, path: str, *, offset: int, limit: int, first: int = 0) -> LogRange:
        for _ in range(READ_ATTEMPTS):
            parts = self._list(path)
            there = _from(parts, first)
            begin = max(offset, there.first)
            try:
                pieces = cover(parts, begin, min(begin + max(limit, 0), there.end))
                return LogRange(there, begin, self._join(path, pieces))
            except NotStoredError:
                continue  # merged since the listing
        raise StorageUnavailableError("changes-too-fast")

    def forget_before(self, path: str, offset: int) -> None:
        self._remember(path, self._forget(path, self._list(path), offset))

    def seal(self, path: str) -> None:
        parts = self._list(path)
        there = stored_extent(parts)
        if there is None:
            return
        start = max(there.first, (there.end - 1) - (there.end - 1) % self._segment_bytes)
        try:
            if sum(1 for part in parts if part.end > start) > 1:
                self._merge_range(path, parts, start, there.end, SEALED_LEVEL)
        except (NotStoredError, StorageUnavailableError) as error:
            log.info("the log %s was not compacted: %s", path, error)
        self._forget_known(path)

    def delete(self, path: str) -> None:
        for part in self._list(path):
            self._bucket.delete(self._name(path, part))
        self._forget_known(path)

    def job_ids(self) -> set[int]:
        return {int(name) for name in self._bucket.folders(f"{LOGS_DIR}/") if name.isdecimal()}

    def paths(self, job_id: int) -> Iterator[str]:
        found = self._bucket.list(f"{LOGS_DIR}/{job_id}/")
        names = (one.name.removeprefix(f"{LOGS_DIR}/").rpartition("/")[0] for one in found)
        yield from dict.fromkeys(names)

    def delete_job(self, job_id: int) -> None:
        for found in list(self._bucket.list(f"{LOGS_DIR}/{job_id}/")):
            self._bucket.delete(found.name)

    def _merge(self, path: str, parts: frozenset[StoredPart]) -> frozenset[StoredPart]:
        """Merge parts at the end of the log; a failed merge is repeated after a later append."""
        try:
            while wanted := next_merge(list(parts), segment_bytes=self._segment_bytes):
                parts = self._merge_range(path, parts, *wanted)
        except (NotStoredError, StorageUnavailableError) as error:
            # Another host may have merged them; the append itself is stored.
            log.info("parts of the log %s were not merged: %s", path, error)
            parts = self._list(path)
        return parts

    def _merge_range(
        self, path: str, parts: frozenset[StoredPart], first: int, end: int, level: int
    ) -> frozenset[StoredPart]:
        merged = StoredPart(first, end, level)
        content = self._join(path, cover(parts, first, end))
        if len(content) != end - first:
            raise NotStoredError(path)
        self._bucket.put(self._name(path, merged), content)
        inside = {
            part
            for part in parts
            if first <= part.first and part.end <= end and part.name != merged.name
        }
        for part in sorted(inside):
            self._bucket.delete(self._name(path, part))
        return (parts - inside) | {merged}

    def _forget(
        self, path: str, parts: frozenset[StoredPart], offset: int
    ) -> frozenset[StoredPart]:
        old = {
            part
            for part in parts
            if part.first - part.first % self._segment_bytes + self._segment_bytes <= offset
        }
        for part in sorted(old):
            self._bucket.delete(self._name(path, part))
        return parts - old

    def _join(self, path: str, pieces: Iterable[_Piece]) -> bytes:
        return b"".join(
            self._bucket.get(
                self._name(path, piece.part),
                begin=piece.first - piece.part.first,
                end=piece.end - piece.part.first,
            )
            for piece in pieces
        )

    def _list(self, path: str) -> frozenset[StoredPart]:
        prefix = f"{LOGS_DIR}/{checked_name(path)}/"
        found = (parse_part(one.name.removeprefix(prefix)) for one in self._bucket.list(prefix))
        return frozenset(part for part in found if part is not None)

    def _parts(self, path: str) -> frozenset[StoredPart]:
        """Return the parts as this process knows them: listing each time would cost a request."""
        with self._lock:
            known = self._known.get(path)
        return self._list(path) if known is None else known

    def _remember(self, path: str, parts: frozenset[StoredPart]) -> None:
        with self._lock:
            self._known[path] = parts
            self._known.move_to_end(path)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def _forget_known(self, path: str) -> None:
        with self._lock:
            self._known.pop(path, None)

    def _name(self, path: str, part: StoredPart) -> str:
        return f"{LOGS_DIR}/{checked_name(path)}/{part.name}"


def _from(parts: Iterable[StoredPart], first: int) -> Extent:
    there = stored_extent(parts)
    if there is None:
        return Extent(first, first)
    return Extent(max(first, there.first), max(first, there.end))


def _covers(parts: Iterable[StoredPart], wanted: StoredPart) -> bool:
    pieces = cover(parts, wanted.first, wanted.end)
    return bool(pieces) and pieces[-1].end == wanted.end
