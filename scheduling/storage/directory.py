"""File storage in a directory: the data directory, on a local or a shared file system."""

import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scheduling.storage.base import (
    LOGS_DIR,
    SEGMENT_BYTES,
    LogStorage,
    NotStoredError,
    StorageState,
    StoredFile,
    checked_name,
    is_valid_name,
)
from scheduling.storage.log_segments import DirectoryLogs

CHUNK_BYTES: Final = 1 << 20
_OWNER_ONLY: Final = 0o700


class DirectoryStorage:
    """Files below one directory. A write appears under its name only when it is complete."""

    def __init__(self, root: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Args: root: the directory. segment_bytes: size of the segments of logs."""
        self.root = root
        self._logs = DirectoryLogs(root / LOGS_DIR, segment_bytes=segment_bytes)

    def __repr__(self) -> str:
        return f"DirectoryStorage({str(self.root)!r})"

    @property
    def logs(self) -> LogStorage:
        return self._logs

    @property
    def label(self) -> str:
        return f"directory {self.root}"

    @property
    def is_shared(self) -> bool:
        return False

    def put(self, name: str, content: bytes) -> None:
        path, temporary = self._begin(name)
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def put_file(self, name: str, path: Path) -> None:
        target, temporary = self._begin(name)
        try:
            try:
                os.link(path, temporary)
            except OSError:
                shutil.copyfile(path, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, name: str) -> bytes:
        try:
            return self.local_path(name).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotStoredError(name) from None

    def open_chunks(self, name: str) -> Iterator[bytes]:
        try:
            file = self.local_path(name).open("rb")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotStoredError(name) from None
        with file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def local_path(self, name: str) -> Path:
        return self.root / checked_name(name)

    def fetch(self, name: str, *, sha256: str) -> Path:
        # The file was hashed when it was stored, and the node hashes what it receives.
        del sha256
        path = self.local_path(name)
        if not path.is_file():
            raise NotStoredError(name)
        return path

    def stat(self, name: str) -> StoredFile | None:
        try:
            found = self.local_path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return StoredFile(name, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def touch(self, name: str) -> None:
        try:
            os.utime(self.local_path(name))
        except FileNotFoundError:
            return

    def files(self, prefix: str) -> Iterator[StoredFile]:
        for path in sorted(self.local_path(prefix).rglob("*")):
            if path.name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            name = path.relative_to(self.root).as_posix()
            found = self.stat(name) if is_valid_name(name) else None
            if found is not None:
                yield found

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.local_path(name).unlink(missing_ok=True)

    def state(self) -> StorageState:
        return StorageState()

    def store_spooled(self) -> None:
        """Do nothing: a directory has no spool."""

    def _begin(self, name: str) -> tuple[Path, Path]:
        path = self.local_path(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=_OWNER_ONLY)
        unique = f".{path.name}.{os.getpid()}-{threading.get_ident()}"
        return path, path.with_name(unique)
