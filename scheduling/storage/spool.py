"""Spool: files that this host has accepted and stores when the object store responds again."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from scheduling.storage.base import StorageUnavailableError, checked_name, is_valid_name

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
FULL: Final = "spool-full"


class Spool:
    """A directory of files by their names in the storage, shared by the processes of one host."""

    def __init__(
        self, root: Path, *, most_bytes: int, store: Callable[[str, bytes], None]
    ) -> None:
        """Args:
        root: directory of the spool.
        most_bytes: limit of all its files.
        store: stores a file; raises ``StorageUnavailableError`` if it must be retried.
        """
        self._root = root
        self._most_bytes = most_bytes
        self._store = store
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def add(self, name: str, content: bytes) -> None:
        """Write a file to disk, and store it in the background as soon as possible.

        Raises:
            StorageUnavailableError: the spool is full.
            OSError: the disk does not take the file.
        """
        if self.size() + len(content) > self._most_bytes:
            raise StorageUnavailableError(FULL)
        path = self._root / checked_name(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self.begin()

    def get(self, name: str) -> bytes | None:
        """Return a spooled file, or None."""
        try:
            return (self._root / checked_name(name)).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def delete(self, name: str) -> None:
        (self._root / checked_name(name)).unlink(missing_ok=True)

    def size(self) -> int:
        """Return the bytes of all spooled files."""
        total = 0
        for path in self._files():
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
        return total

    def begin(self) -> None:
        """Store the files in the background, unless a thread of this process does so."""
        if next(self._files(), None) is None:
            return
        with self._lock:
            is_own = self._pid == os.getpid()
            if is_own and self._thread is not None and self._thread.is_alive():
                return
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._work, name="spool", daemon=True)
            self._thread.start()

    def flush(self) -> bool:
        """Store all files now; returns whether none is left. Two processes may do so at once."""
        for path in list(self._files()):
            name = path.relative_to(self._root).as_posix()
            try:
                before, content = path.stat().st_mtime_ns, path.read_bytes()
                self._store(name, content)
                if path.stat().st_mtime_ns == before:
                    path.unlink()
            except FileNotFoundError:
                continue  # another process was faster
            except StorageUnavailableError:
                return False
        return next(self._files(), None) is None

    def _work(self) -> None:
        while True:
            try:
                if self.flush():
                    return
            except OSError as error:
                log.warning("the spool cannot be read: %s", error)
            time.sleep(RETRY_SECONDS)

    def _files(self) -> Iterator[Path]:
        for path in sorted(self._root.rglob("*")):
            name = path.relative_to(self._root).as_posix()
            if not path.name.startswith(".") and is_valid_name(name) and path.is_file():
                yield path
