"""Requests to one bucket of an S3-compatible object store, with short time limits.

All errors are ``NotStoredError`` or ``StorageUnavailableError``. After a failure, requests fail at
once for a growing pause, so that threads do not queue up behind a store that does not respond.
"""

import base64
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from scheduling.storage.base import (
    NotStoredError,
    StorageState,
    StorageUnavailableError,
    StoredFile,
)
from scheduling.storage.config import StorageConfig
from tenants.clock import estimated_now

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Limits of one request: seconds to connect, seconds without a byte, and attempts."""

    connect: float
    read: float
    attempts: int


CHECK: Final = TimeLimits(connect=2.0, read=2.0, attempts=1)
SMALL: Final = TimeLimits(connect=2.0, read=5.0, attempts=3)
LARGE: Final = TimeLimits(connect=2.0, read=60.0, attempts=3)
"""Of whole archives, which a store confirms only after it has written them."""
MOST_CONNECTIONS: Final = 32
FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 5.0
CHECKED_SECONDS: Final = 3.0
CHUNK_BYTES: Final = 1 << 20
UNREACHABLE: Final = "unreachable"
DENIED: Final = "denied"
NO_BUCKET: Final = "no-bucket"
NO_CREDENTIALS: Final = "no-credentials"
NOT_INSTALLED: Final = "not-installed"
_MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_REASONS: Final = {
    "NoSuchBucket": NO_BUCKET,
    "AccessDenied": DENIED,
    "403": DENIED,
    "Forbidden": DENIED,
    "InvalidAccessKeyId": DENIED,
    "SignatureDoesNotMatch": DENIED,
}


class Bucket:
    """A bucket, or the part of it below a prefix. Names are relative to that prefix."""

    def __init__(
        self, config: StorageConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Connect on first use. Args: clock: monotonic, in seconds."""
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[TimeLimits, Any] = {}
        self._pid = 0
        self._pause = 0.0
        self._closed_until = float("-inf")
        self._state = StorageState()
        self._checked_at = float("-inf")

    @property
    def label(self) -> str:
        return f"bucket {self._config.bucket}"

    def put(self, name: str, content: bytes) -> None:
        """Store an object; the store verifies its MD5, so a damaged transfer is an error."""
        digest = base64.b64encode(_md5(content)).decode()
        self._call(
            name,
            lambda client: client.put_object(
                **self._object(name), Body=content, ContentMD5=digest
            ),
        )

    def put_file(self, name: str, path: Path) -> None:
        """Store a local file in one request."""
        with path.open("rb") as file:
            found = hashlib.md5(usedforsecurity=False)
            while chunk := file.read(CHUNK_BYTES):
                found.update(chunk)
            digest = base64.b64encode(found.digest()).decode()
            file.seek(0)
            self._call(
                name,
                lambda client: client.put_object(
                    **self._object(name), Body=file, ContentMD5=digest
                ),
                limits=LARGE,
            )

    def get(self, name: str, *, begin: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of an object from ``begin`` up to ``end``, at least one byte."""
        wanted = {} if end is None else {"Range": f"bytes={begin}-{end - 1}"}

        def read(client: Any) -> bytes:
            return bytes(client.get_object(**self._object(name), **wanted)["Body"].read())

        content = self._call(name, read)
        if end is not None and len(content) != end - begin:
            raise StorageUnavailableError("incomplete-read")
        return content

    def chunks(self, name: str) -> Iterator[bytes]:
        """Return the content of an object in chunks."""
        response = self._call(
            name, lambda client: client.get_object(**self._object(name)), limits=LARGE
        )
        while chunk := self._call(name, lambda _: bytes(response["Body"].read(CHUNK_BYTES))):
            yield chunk

    def stat(self, name: str) -> StoredFile | None:
        try:
            found = self._call(name, lambda client: client.head_object(**self._object(name)))
        except NotStoredError:
            return None
        return StoredFile(name, int(found["ContentLength"]), _utc(found["LastModified"]))

    def touch(self, name: str) -> None:
        """Copy an object onto itself, which sets its time."""
        wanted = self._object(name)
        self._call(
            name,
            lambda client: client.copy_object(
                **wanted, CopySource=dict(wanted), MetadataDirective="REPLACE"
            ),
            limits=LARGE,
        )

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Return the objects whose names begin with ``prefix``, ordered by name."""
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                name = str(found["Key"])[len(self._config.prefix) :]
                yield StoredFile(name, int(found["Size"]), _utc(found["LastModified"]))

    def folders(self, prefix: str) -> Iterator[str]:
        """Return the parts of names between ``prefix`` and the next ``/``."""
        begin = len(self._config.prefix) + len(prefix)
        for page in self._pages(prefix, Delimiter="/"):
            for found in page.get("CommonPrefixes", ()):
                yield str(found["Prefix"])[begin:].rstrip("/")

    def delete(self, name: str) -> None:
        try:
            self._call(name, lambda client: client.delete_object(**self._object(name)))
        except NotStoredError:
            return

    def check(self) -> StorageState:
        """Return whether the bucket responds within 2 s; the result is cached for 3 s."""
        now = self._clock()
        if now - self._checked_at >= CHECKED_SECONDS:
            try:
                self._check()
            except StorageUnavailableError as error:
                self._failed(error)
            self._checked_at = now
        return self._state

    def _check(self) -> None:
        self._request(
            "",
            lambda client: client.list_objects_v2(
                Bucket=self._config.bucket, Prefix=self._config.prefix, MaxKeys=1
            ),
            CHECK,
        )
        self._worked()

    def _pages(self, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        where = {"Bucket": self._config.bucket, "Prefix": self._config.prefix + prefix, **options}
        page: dict[str, Any] = self._call("", lambda client: client.list_objects_v2(**where))
        yield page
        while token := page.get("NextContinuationToken"):
            page = self._next_page(where, str(token))
            yield page

    def _next_page(self, where: dict[str, str], token: str) -> dict[str, Any]:
        def read(client: Any) -> dict[str, Any]:
            return dict(client.list_objects_v2(**where, ContinuationToken=token))

        return self._call("", read)

    def _object(self, name: str) -> dict[str, str]:
        return {"Bucket": self._config.bucket, "Key": self._config.prefix + name}

    def _call(self, name: str, act: Callable[[Any], T], *, limits: TimeLimits = SMALL) -> T:
        if self._clock() < self._closed_until:
            raise StorageUnavailableError(self._state.reason or UNREACHABLE)
        try:
            if self._state.reason:
                self._check()  # a store that still does not respond costs 2 s at most
            result = self._request(name, act, limits)
        except StorageUnavailableError as error:
            self._failed(error)
            raise
        except NotStoredError:
            self._worked()
            raise
        self._worked()
        return result

    def _request(self, name: str, act: Callable[[Any], T], limits: TimeLimits) -> T:
        try:
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 optional
            from urllib3.exceptions import HTTPError  # noqa: PLC0415 comes with botocore
        except ImportError:
            raise StorageUnavailableError(NOT_INSTALLED) from None
        try:
            return act(self._client(limits))
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _MISSING:
                raise NotStoredError(name) from None
            raise StorageUnavailableError(_REASONS.get(code, f"error-{code[:40]}")) from None
        except (BotoCoreError, HTTPError) as error:
            is_login = "Credentials" in type(error).__name__
            raise StorageUnavailableError(NO_CREDENTIALS if is_login else UNREACHABLE) from None

    def _client(self, limits: TimeLimits) -> Any:
        """Return a client of this process: connections must not be shared after a fork."""
        with self._lock:
            if self._pid != os.getpid():
                self._clients, self._pid = {}, os.getpid()
            if limits not in self._clients:
                self._clients[limits] = self._connect(limits)
            return self._clients[limits]

    def _connect(self, limits: TimeLimits) -> Any:
        import boto3  # noqa: PLC0415 optional, and takes a second
        from botocore.config import Config  # noqa: PLC0415 likewise

        config = self._config
        return boto3.session.Session().client(
            "s3",
            endpoint_url=config.endpoint or None,
            region_name=config.region or None,
            aws_access_key_id=config.access_key or None,
            aws_secret_access_key=config.secret_key or None,
            config=Config(
                connect_timeout=limits.connect,
                read_timeout=limits.read,
                retries={"mode": "standard", "total_max_attempts": limits.attempts},
                max_pool_connections=MOST_CONNECTIONS,
                # Other S3 implementations know fewer checksums than AWS; puts carry their MD5.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path" if config.endpoint else "auto"},
            ),
        )

    def _failed(self, error: StorageUnavailableError) -> None:
        with self._lock:
            if not self._state.reason:
                log.warning("%s is not available: %s", self.label, error.reason)
            self._pause = min(max(FIRST_PAUSE, self._pause * 2), LONGEST_PAUSE)
            self._closed_until = self._clock() + self._pause
            since = self._state.since or estimated_now()
            self._state = StorageState(reason=error.reason, since=since)

    def _worked(self) -> None:
        with self._lock:
            if self._state.reason:
                log.warning("%s is available again", self.label)
                self._state = StorageState()
            self._pause, self._closed_until = 0.0, float("-inf")


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
