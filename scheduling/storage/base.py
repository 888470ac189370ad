"""Port of file storage: named files, and logs that grow. Every implementation passes one suite."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

LONGEST_NAME: Final = 512
SEGMENT_BYTES: Final = 4 << 20
"""Logs are stored in segments of this size; retention drops whole segments."""
OFFSET_DIGITS: Final = 16
LOGS_DIR: Final = "logs"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")


class StorageUnavailableError(OSError):
    """The storage does not respond or refuses requests; a later retry may succeed.

    The message never contains credentials or addresses.
    """

    def __init__(self, reason: str) -> None:
        """Args: reason: a stable code, such as ``unreachable`` or ``denied``."""
        super().__init__(f"the file storage is not available: {reason}")
        self.reason = reason


class NotStoredError(FileNotFoundError):
    """The storage has no file of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not stored")
        self.name = name


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file.

    Attributes:
        name: path below the root of the storage, with ``/``.
        size: bytes.
        modified_at: time of the last write, by the clock of the storage.
    """

    name: str
    size: int
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class Extent:
    """Stored part of a log: logical offsets from ``first`` up to ``end``."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """Bytes of a log.

    Attributes:
        extent: the stored part at the time of the read.
        offset: logical offset of the first byte of ``data``.
    """

    extent: Extent
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StorageState:
    """The state of a storage, as this process sees it.

    Attributes:
        reason: why it is not available; empty if it is.
        since: start of that state; None if it is available.
        spooled_bytes: accepted on this host and not yet stored.
    """

    reason: str = ""
    since: datetime | None = None
    spooled_bytes: int = 0


class LogStorage(Protocol):
    """Logs, each a byte stream with logical offsets. A path is ``job/attempt/role-rank.log``.

    The bytes at an offset never change, so repeated and concurrent writes of one log by several
    hosts are harmless. If a log has a gap, its extent begins behind the last gap or, in a
    directory, behind the last missing segment; the caller stores the first offset.
    """

    def extent(self, path: str, *, first: int = 0) -> Extent:
        """Return the stored range of a log from ``first`` on, without cached knowledge.

        Raises:
            StorageUnavailableError: the storage does not respond.
        """

    def write(self, path: str, *, offset: int, data: bytes, cap_bytes: int) -> Extent:
        """Store ``data`` at its offset, and delete segments beyond the newest ``cap_bytes``.

        When this returns, the bytes are stored and readable by every host.

        Raises:
            OSError: some of the bytes may not be stored; the caller repeats the write.
        """

    def read(self, path: str, *, offset: int, limit: int, first: int = 0) -> LogRange:
        """Return up to ``limit`` bytes from ``offset``, or from the log's beginning.

        Raises:
            StorageUnavailableError: the storage does not respond.
        """

    def forget_before(self, path: str, offset: int) -> None:
        """Delete the segments that end before ``offset``."""

    def seal(self, path: str) -> None:
        """Compact a log to which nothing will be appended; an error leaves it as it is."""

    def delete(self, path: str) -> None:
        """Delete a whole log."""

    def job_ids(self) -> set[int]:
        """Return the jobs that have logs."""

    def paths(self, job_id: int) -> Iterator[str]:
        """Return the paths of a job's logs."""

    def delete_job(self, job_id: int) -> None:
        """Delete all logs of a job."""


class FileStorage(Protocol):
    """Storage of the installation's files. Instances are thread-safe and survive a fork."""

    @property
    def logs(self) -> LogStorage:
        """Logs of jobs."""

    @property
    def label(self) -> str:
        """Name for messages, without credentials."""

    @property
    def is_shared(self) -> bool:
        """Return whether every host sees the same files without a shared file system."""

    def put(self, name: str, content: bytes) -> None:
        """Store a file completely or not at all; replaces a file of the same name.

        If the storage is not available, the content is spooled on this host, and stored later.

        Raises:
            OSError: the content was neither stored nor spooled.
        """

    def put_file(self, name: str, path: Path) -> None:
        """Store a local file, completely or not at all; it is never spooled.

        Raises:
            OSError: the file was not stored.
        """

    def get(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            NotStoredError: there is no such file.
            StorageUnavailableError: the storage does not respond.
        """

    def open_chunks(self, name: str) -> Iterator[bytes]:
        """Return the content of a file in chunks; raises as ``get``."""

    def local_path(self, name: str) -> Path:
        """Return the place of a local copy of a file, which ``fetch`` creates."""

    def fetch(self, name: str, *, sha256: str) -> Path:
        """Return a local copy of a file, verified by its hash if it was transferred.

        Raises:
            NotStoredError: there is no such file, or its hash differs.
            StorageUnavailableError: the storage does not respond.
        """

    def stat(self, name: str) -> StoredFile | None:
        """Return size and time of a file, or None if it is not stored."""

    def touch(self, name: str) -> None:
        """Set the time of a file to now; does nothing if it is not stored."""

    def files(self, prefix: str) -> Iterator[StoredFile]:
        """Return the files below a directory, ordered by name."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""

    def state(self) -> StorageState:
        """Check whether the storage responds; bounded by a few seconds."""

    def store_spooled(self) -> None:
        """Begin to store files that were spooled on this host, in the background."""


def checked_name(name: str) -> str:
    """Return a valid name of a stored file.

    Raises:
        ValueError: the name is empty, absolute or too long, or has unusual characters or ``..``.
    """
    if not is_valid_name(name):
        raise ValueError(f"{name[:80]!r} is not a valid name of a stored file")
    return name


def is_valid_name(name: str) -> bool:
    """Return whether a relative path can name a stored file."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        return False
    return not any(part in (".", "..") for part in name.split("/"))
