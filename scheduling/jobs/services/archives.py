"""Source archives: validation, storage by SHA-256, and deletion when unused."""

import hashlib
import os
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, Final

from django.db import transaction
from django.db.models import Q, Sum

from scheduling.core.lifecycle import TERMINAL
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job, SourceArchive
from scheduling.storage.base import FileStorage, StorageUnavailableError
from scheduling.storage.errors import StorageAwayError
from tenants.audit import record
from tenants.errors import DomainError, FieldError, InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

ARCHIVES_DIR: Final = "archives"
UPLOAD_PREFIX: Final = ".upload-"
MOST_BYTES: Final = 512 << 20
MOST_TENANT_BYTES: Final = 20 << 30
MOST_UNPACKED_BYTES: Final = 32 << 30
MOST_FILES: Final = 200_000
LONGEST_NAME: Final = 200
LONGEST_LINK: Final = 4096
_DAMAGED: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)


class TooLargeError(DomainError):
    """The upload exceeds the size limit."""

    code = "too-large"
    status = 413
    title: ClassVar[str] = sentence("archive-too-large")


class ArchivesFullError(DomainError):
    """The upload would exceed the tenant's limit of archive bytes."""

    code = "archives-full"
    status = 413
    title: ClassVar[str] = sentence("archives-too-large")


@dataclass(frozen=True, slots=True)
class _Entry:
    """The fields of an archive member that are checked before it is read."""

    name: str
    size: int
    link: str | None = None
    is_plain: bool = True


def store_archive(
    *,
    viewer: Viewer,
    tenant_id: int,
    name: str,
    content: Iterable[bytes],
    storage: FileStorage,
    now: datetime,
    most_bytes: int = MOST_BYTES,
    tenant_bytes: int = MOST_TENANT_BYTES,
) -> tuple[SourceArchive, bool]:
    """Store an uploaded archive; the same bytes return the existing row.

    Args:
        viewer: a user who may submit jobs to the tenant.
        tenant_id: the tenant whose jobs may use the archive.
        name: display name of the file.
        content: the bytes in pieces.
        storage: stores archives under their SHA-256.
        now: time to store.
        most_bytes: maximum size of one upload.
        tenant_bytes: maximum size of all archives of a tenant.

    Returns:
        The row, and whether it is new.

    Raises:
        ForbiddenError: the viewer may not submit jobs to the tenant.
        TooLargeError: the upload exceeds ``most_bytes``.
        ArchivesFullError: the archives of the tenant would exceed ``tenant_bytes``.
        StorageAwayError: the object store does not respond.
        InvalidError: the file is not a tar.gz or zip archive, or a member would leave the
            directory.
    """
    viewer.require(Permission.SUBMIT_JOBS, tenant_id, what="the tenant's archives")
    InvalidError.raise_if(_name_faults(name))
    folder = storage.local_path(ARCHIVES_DIR)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _received(content, folder, most_bytes) as (path, digest, size):
        check_archive(path)
        _check_room(tenant_id, digest, size, tenant_bytes)
        _keep(storage, path, digest)
    assert viewer.user_id is not None  # noqa: S101 the system submits nothing
    with transaction.atomic():
        row, is_new = SourceArchive.objects.unscoped().get_or_create(
            tenant_id=tenant_id,
            sha256=digest,
            defaults={"owner_id": viewer.user_id, "name": name, "size": size, "created_at": now},
        )
        if is_new:
            after = {"name": name, "sha256": digest, "size": size}
            record(actor=viewer, action="archive.add", obj=row, after=after, tenant=tenant_id)
    return row, is_new


def archive_name(digest: str) -> str:
    """Return the name of an archive in the storage."""
    return f"{ARCHIVES_DIR}/{digest}"


def _check_room(tenant_id: int, digest: str, size: int, tenant_bytes: int) -> None:
    """Refuse an upload beyond the tenant's limit; an existing archive needs no space."""
    rows = SourceArchive.objects.unscoped().filter(tenant_id=tenant_id)
    kept = rows.exclude(sha256=digest).aggregate(kept=Sum("size"))["kept"] or 0
    if kept + size <= tenant_bytes:
        return
    raise ArchivesFullError(
        sentence("archives-over-limit", kept=format(kept, ","), most=format(tenant_bytes, ",")),
        field="file",
        value=size,
        remedy=sentence("make-room-for-archives"),
    )


def check_archive(path: Path) -> None:
    """Check that every member of an archive is a file, directory or link inside the directory.

    Nothing is unpacked; the node repeats the check when it unpacks the archive.

    Raises:
        InvalidError: the file is not an archive or is damaged, or a member would leave the
            directory.
    """
    files = unpacked = 0
    try:
        for entry in _entries(path):
            files += 1
            unpacked += entry.size
            _check_entry(entry)
            if files > MOST_FILES or unpacked > MOST_UNPACKED_BYTES:
                raise _refused(
                    sentence(
                        "archive-over-limits",
                        files=f"{MOST_FILES:,}",
                        size=MOST_UNPACKED_BYTES >> 30,
                    )
                )
    except (*_DAMAGED, OSError, UnicodeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _refused(sentence("not-archive")) from None
    if not files:
        raise _refused(sentence("archive-empty"))


def _entries(path: Path) -> Iterator[_Entry]:
    if zipfile.is_zipfile(path):
        yield from _zip_entries(path)
    else:
        yield from _tar_entries(path)


def _tar_entries(path: Path) -> Iterator[_Entry]:
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            link = member.linkname if member.issym() else None
            is_plain = member.isreg() or member.isdir() or member.issym()
            yield _Entry(member.name, member.size, link, is_plain)


def _zip_entries(path: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            link = None
            if stat.S_ISLNK(mode):
                if member.file_size > LONGEST_LINK:
                    raise _refused(sentence("link-too-long"))
                link = archive.read(member).decode()
            is_plain = stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
            yield _Entry(member.filename, member.file_size, link, is_plain)


def _check_entry(entry: _Entry) -> None:
    if not entry.is_plain:
        raise _refused(sentence("archive-has-special-file", name=repr(entry.name[:LONGEST_NAME])))
    if _leaves(entry.name):
        raise _refused(sentence("archive-escapes", name=repr(entry.name[:LONGEST_NAME])))
    if entry.link is not None:
        folder = entry.name.rpartition("/")[0]
        target = os.path.normpath(f"{folder}/{entry.link}" if folder else entry.link)
        if entry.link.startswith("/") or target.split("/")[0] == ".." or "\0" in entry.link:
            raise _refused(sentence("link-escapes", name=repr(entry.name[:LONGEST_NAME])))


def _leaves(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/") or "\0" in name or "\\" in name


@contextmanager
def _received(
    content: Iterable[bytes], folder: Path, most_bytes: int
) -> Iterator[tuple[Path, str, int]]:
    """Yield path, SHA-256 and size of the upload in a temporary file."""
    digest, size = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile(dir=folder, prefix=UPLOAD_PREFIX) as received:
        for piece in content:
            size += len(piece)
            if size > most_bytes:
                raise TooLargeError(
                    sentence("archive-over-size", size=most_bytes >> 20),
                    field="file",
                    remedy=sentence("leave-data-out"),
                )
            digest.update(piece)
            received.write(piece)
        received.flush()
        os.fsync(received.fileno())
        yield Path(received.name), digest.hexdigest(), size


def _keep(storage: FileStorage, received: Path, digest: str) -> None:
    """Store the file under its hash; concurrent uploads of the same bytes are harmless."""
    name = archive_name(digest)
    try:
        if storage.stat(name) is not None:
            storage.touch(name)
        else:
            storage.put_file(name, received)
    except StorageUnavailableError as error:
        raise StorageAwayError.of_upload() from error


def _name_faults(name: str) -> list[FieldError]:
    if 0 < len(name) <= LONGEST_NAME and name.isprintable() and "/" not in name:
        return []
    return [
        FieldError(
            field="name",
            value=name,
            message=sentence("not-file-name"),
            remedy=sentence("give-file-name", most=LONGEST_NAME),
        )
    ]


def _refused(message: str) -> InvalidError:
    return InvalidError(
        message,
        field="file",
        remedy=sentence("send-archive"),
    )


SETTLED: Final = timedelta(hours=1)


def prune_archives(*, storage: FileStorage, older_than: datetime, now: datetime) -> int:
    """Delete archives last used (by an upload or a job) before ``older_than``.

    A job uses its archive until it ends. A file is deleted with the last row that refers to it, or
    if it remained after an interrupted upload.

    Args:
        storage: has the archives.
        older_than: limit of the last use.
        now: the current time; files younger than an hour may belong to an upload and stay.

    Returns:
        The number of deleted archives.
    """
    used = _used(older_than)
    old = [
        pk
        for pk, tenant, digest in SourceArchive.objects.unscoped()
        .filter(created_at__lt=older_than)
        .values_list("pk", "tenant_id", "sha256")
        if (tenant, digest) not in used and _touched(storage, digest) < older_than
    ]
    with transaction.atomic():
        SourceArchive.objects.unscoped().filter(pk__in=old).delete()
    _sweep(storage, now - SETTLED)
    return len(old)


def _used(since: datetime) -> set[tuple[int, str]]:
    """Return tenants and hashes of archives whose jobs are live or ended after ``since``."""
    jobs = Job.objects.unscoped().filter(
        ~Q(state__in=TERMINAL) | Q(finished_at__gte=since), spec__source__archive__isnull=False
    )
    return set(jobs.values_list("tenant_id", "spec__source__archive"))


def _sweep(storage: FileStorage, before: datetime) -> None:
    """Delete files without a row, except uploads in progress."""
    named = set(SourceArchive.objects.unscoped().values_list("sha256", flat=True))
    found = storage.files(ARCHIVES_DIR)
    storage.delete(
        [
            one.name
            for one in found
            if one.name.rpartition("/")[2] not in named and one.modified_at < before
        ]
    )
    for path in storage.local_path(ARCHIVES_DIR).glob(f"{UPLOAD_PREFIX}*"):
        if datetime.fromtimestamp(path.stat().st_mtime, UTC) < before:
            path.unlink(missing_ok=True)


def _touched(storage: FileStorage, digest: str) -> datetime:
    """Return the time of the last upload of a file; the earliest time without a file."""
    found = storage.stat(archive_name(digest))
    return found.modified_at if found is not None else datetime.min.replace(tzinfo=UTC)
