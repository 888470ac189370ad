"""File storage in an S3-compatible object store, with a spool and a cache on each host."""

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from scheduling.storage.base import (
    SEGMENT_BYTES,
    LogStorage,
    NotStoredError,
    StorageState,
    StorageUnavailableError,
    StoredFile,
    checked_name,
)
from scheduling.storage.bucket import Bucket
from scheduling.storage.config import StorageConfig
from scheduling.storage.log_parts import ObjectLogs
from scheduling.storage.spool import Spool

SPOOL_DIR: Final = "spool"
CACHE_DIR: Final = "cache"
MOST_CACHE_BYTES: Final = 4 << 30


class ObjectStorage:
    """Files as objects of one bucket; every host sees the same files."""

    def __init__(self, config: StorageConfig, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Args: config: bucket and credentials. segment_bytes: size of the segments of logs."""
        self._bucket = Bucket(config)
        self._logs = ObjectLogs(self._bucket, segment_bytes=segment_bytes)
        self._cache = config.data_dir / CACHE_DIR
        self._spool = Spool(
            config.data_dir / SPOOL_DIR, most_bytes=config.spool_bytes, store=self._bucket.put
        )

    def __repr__(self) -> str:
        return f"ObjectStorage({self.label!r})"

    @property
    def logs(self) -> LogStorage:
        return self._logs

    @property
    def label(self) -> str:
        return self._bucket.label

    @property
    def is_shared(self) -> bool:
        return True

    def put(self, name: str, content: bytes) -> None:
        checked_name(name)
        try:
            self._bucket.put(name, content)
        except StorageUnavailableError:
            self._spool.add(name, content)

    def put_file(self, name: str, path: Path) -> None:
        self._bucket.put_file(checked_name(name), path)

    def get(self, name: str) -> bytes:
        spooled = self._spool.get(name)
        return spooled if spooled is not None else self._bucket.get(checked_name(name))

    def open_chunks(self, name: str) -> Iterator[bytes]:
        spooled = self._spool.get(name)
        if spooled is not None:
            yield spooled
        else:
            yield from self._bucket.chunks(checked_name(name))

    def local_path(self, name: str) -> Path:
        return self._cache / checked_name(name)

    def fetch(self, name: str, *, sha256: str) -> Path:
        path = self.local_path(name)
        if path.is_file():
            # The cache drops the files that were not used for the longest time.
            os.utime(path)
            return path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        digest = hashlib.sha256()
        try:
            with temporary.open("wb") as file:
                for chunk in self.open_chunks(name):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise NotStoredError(name)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._shrink_cache(path)
        return path

    def stat(self, name: str) -> StoredFile | None:
        return self._bucket.stat(checked_name(name))

    def touch(self, name: str) -> None:
        try:
            self._bucket.touch(checked_name(name))
        except NotStoredError:
            return

    def files(self, prefix: str) -> Iterator[StoredFile]:
        return self._bucket.list(f"{checked_name(prefix)}/")

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._spool.delete(name)
            self.local_path(name).unlink(missing_ok=True)
            self._bucket.delete(name)

    def state(self) -> StorageState:
        return replace(self._bucket.check(), spooled_bytes=self._spool.size())

    def store_spooled(self) -> None:
        self._spool.begin()

    def _shrink_cache(self, newest: Path) -> None:
        """Delete the least recently used files beyond 4 GiB, except the one just fetched."""
        found = []
        for path in self._cache.rglob("*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file() and not path.name.startswith("."):
                found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found, key=lambda one: one[0]):
            if total <= MOST_CACHE_BYTES:
                return
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size
