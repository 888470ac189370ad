"""Copying of all files from one storage to another while jobs run; can be repeated at any time."""

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scheduling.storage.base import Extent, FileStorage, StoredFile

FOLDERS: Final = ("rounds", "archives")
PIECE_BYTES: Final = 1 << 20
NO_CAP: Final = 1 << 62


class CopyDamagedError(Exception):
    """A copy does not have the hash of its source."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the copy of {name} does not have the hash of its source")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """Numbers of one pass so far.

    Attributes:
        seen: files and logs that were compared.
        copied: those of which something was copied.
        copied_bytes: copied and verified bytes.
        verified: files that were already there, and whose hash was compared.
    """

    seen: int = 0
    copied: int = 0
    copied_bytes: int = 0
    verified: int = 0


class StorageMove:
    """One pass over a source; files in the target that are complete are skipped."""

    def __init__(
        self,
        source: FileStorage,
        target: FileStorage,
        *,
        report: Callable[[MoveProgress], None] = lambda _: None,
        verifies_all: bool = False,
        folders: Collection[str] = FOLDERS,
        with_logs: bool = True,
    ) -> None:
        """Args:
        source, target: the storages.
        report: is called after each file and log.
        verifies_all: compare the hashes of files that are already there, too.
        folders: copy the files of these; ``with_logs``: copy logs.
        """
        self._source = source
        self._target = target
        self._report = report
        self._verifies_all = verifies_all
        self._folders = folders
        self._with_logs = with_logs
        self.progress = MoveProgress()

    def run(self) -> MoveProgress:
        """Copy what the target lacks, and compare the hash of each copy.

        Raises:
            CopyDamagedError: a copy differs from its source.
            OSError: a storage does not respond; a later run continues.
        """
        for folder in self._folders:
            for found in self._source.files(folder):
                self._count(self._copy_file(found))
        for job_id in sorted(self._source.logs.job_ids()) if self._with_logs else ():
            for path in list(self._source.logs.paths(job_id)):
                self._count(self._copy_log(path))
        return self.progress

    def _count(self, size: int | None) -> None:
        """Count one file or log; ``size``: copied bytes, None if nothing was copied."""
        done = self.progress
        self.progress = replace(
            done,
            seen=done.seen + 1,
            copied=done.copied + (size is not None),
            copied_bytes=done.copied_bytes + (size or 0),
        )
        self._report(self.progress)

    def _copy_file(self, found: StoredFile) -> int | None:
        name = found.name
        there = self._target.stat(name)
        if there is not None and there.size == found.size:
            if self._verifies_all:
                if _digest(self._source, name) != _digest(self._target, name):
                    raise CopyDamagedError(name)
                self.progress = replace(self.progress, verified=self.progress.verified + 1)
            return None
        digest = hashlib.sha256()
        with tempfile.NamedTemporaryFile(prefix="tessera-move-") as copy:
            try:
                for chunk in self._source.open_chunks(name):
                    digest.update(chunk)
                    copy.write(chunk)
            except FileNotFoundError:
                return None  # pruned since the listing
            copy.flush()
            self._target.put_file(name, Path(copy.name))
        if _digest(self._target, name) != digest.hexdigest():
            raise CopyDamagedError(name)
        return found.size

    def _copy_log(self, path: str) -> int | None:
        copied = 0
        for first, end in _lacking(self._source.logs.extent(path), self._target.logs.extent(path)):
            copied += self._copy_range(path, first, end)
        if not copied:
            return None
        self._target.logs.seal(path)
        return copied

    def _copy_range(self, path: str, first: int, end: int) -> int:
        digest, position = hashlib.sha256(), first
        for offset, data in _pieces(self._source, path, first, end):
            if offset != position:
                return 0  # pruned while it was copied; the next pass compares again
            self._target.logs.write(path, offset=offset, data=data, cap_bytes=NO_CAP)
            digest.update(data)
            position += len(data)
        copy = hashlib.sha256()
        for _, data in _pieces(self._target, path, first, position):
            copy.update(data)
        if copy.digest() != digest.digest():
            raise CopyDamagedError(path)
        return position - first


def _lacking(source: Extent, target: Extent) -> list[tuple[int, int]]:
    """Return the ranges of a log that the target does not have."""
    if target.first >= target.end:
        ranges = [(source.first, source.end)]
    else:
        ranges = [
            (source.first, min(target.first, source.end)),
            (max(target.end, source.first), source.end),
        ]
    return [(first, end) for first, end in ranges if first < end]


def _pieces(storage: FileStorage, path: str, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    while first < end:
        found = storage.logs.read(path, offset=first, limit=min(PIECE_BYTES, end - first))
        if not found.data:
            return
        yield found.offset, found.data
        first = found.offset + len(found.data)


def _digest(storage: FileStorage, name: str) -> str:
    digest = hashlib.sha256()
    for chunk in storage.open_chunks(name):
        digest.update(chunk)
    return digest.hexdigest()
