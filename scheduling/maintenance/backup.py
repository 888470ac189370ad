"""A backup: the database at one instant, the keys, and on request rounds and logs, in one file.

The file holds the installation's keys, so only its owner can read it. A restore checks all content
first and needs the same kind of database.
"""

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from django.db import DatabaseError, connection

from scheduling.maintenance.databases import DatabaseCopy, UnusableBackupError
from scheduling.storage.base import FileStorage
from scheduling.storage.directory import DirectoryStorage
from scheduling.storage.moving import StorageMove
from tenants.audit_chain import head
from tenants.migration_history import recorded_migrations, refusal
from tenants.services import newest_uid, skip_uids

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
KEYS: Final = ("seal_secret", "secret_key", "ssh", "archives")
STORED: Final = ("archives", "rounds", "logs")
"""Directories of a backup that belong into the storage."""
ROUNDS: Final = "rounds"
LOGS: Final = "logs"
UNKNOWN_JOB_IDS: Final = 10_000
"""Job IDs that are skipped if the newest ID of the replaced database is unknown."""
MOST_MANIFEST_BYTES: Final = 256 << 20
_OWNER_ONLY: Final = 0o600
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """The content of a backup.

    Attributes:
        created_at: creation time in ISO 8601.
        engine: ``sqlite`` or ``postgresql``.
        files: number of files, including the database.
        size: total size in bytes.
        newest_job_id: highest job ID; a restore continues above it; 0 without a restore.
        newest_uid: highest Unix user ID; a restore continues above it; 0 without a restore.
        audit_head: head of the audit chain right before the copy (``manage.py verify_audit``).
    """

    path: Path
    created_at: str
    engine: str
    files: int
    size: int
    newest_job_id: int = 0
    newest_uid: int = 0
    audit_head: str = ""


def make_backup(
    *,
    target: Path,
    data_dir: Path,
    database: DatabaseCopy,
    now: datetime,
    storage: FileStorage | None = None,
    with_rounds: bool = False,
    with_logs: bool = False,
) -> BackupReport:
    """Write a backup during operation; its name appears only when the file is complete.

    Args:
        target: the file to write; must not exist.
        data_dir: directory of keys, and of archives, rounds and logs without ``storage``.
        database: copies the database.
        now: creation time to store.
        storage: storage of archives, rounds and logs.
        with_rounds: include stored rounds.
        with_logs: include job logs.

    Raises:
        FileExistsError: the file exists.
        UnusableBackupError: the database cannot be copied.
    """
    if target.exists():
        raise FileExistsError(f"{target} already exists; a backup does not overwrite files")
    folders = [*KEYS, *([ROUNDS] if with_rounds else []), *([LOGS] if with_logs else [])]
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(prefix=".tessera-backup-", dir=target.parent) as scratch:
            copy = Path(scratch) / database.file_name
            audit_head = str(head())
            database.dump(copy)
            files = {database.file_name: copy, **_files(data_dir, folders)}
            if storage is not None and _is_elsewhere(storage, data_dir):
                files |= _files(_fetched(storage, folders, Path(scratch)), list(STORED))
            facts = {"engine": database.engine, "audit_head": audit_head}
            count = _write(partial, files, facts, now=now)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return BackupReport(
        path=target,
        created_at=now.isoformat(),
        engine=database.engine,
        files=count,
        size=target.stat().st_size,
        audit_head=audit_head,
    )


def restore_backup(
    *, source: Path, data_dir: Path, database: DatabaseCopy, storage: FileStorage | None = None
) -> BackupReport:
    """Restore a backup. Everything is checked before the first file is changed.

    The caller has checked that no process of the installation runs. IDs of jobs submitted
    after the backup are not reused, nor are Unix user ids of tenants created after it: their logs,
    checkpoints and other files may remain in the data directory and on nodes.

    Args:
        source: a file that ``make_backup`` wrote.
        data_dir: target directory of keys, rounds and logs.
        database: restores the database.
        storage: target of archives, rounds and logs; the data directory by default.

    Raises:
        UnusableBackupError: not a backup, damaged, of another kind of database, or this version
            cannot use its database (``refusal``).
    """
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix=".tessera-restore-", dir=data_dir) as scratch:
        root = Path(scratch)
        manifest = _unpack(source, root)
        _check(manifest, root, database)
        copy = root / database.file_name
        database.check(copy)
        given = database.newest_job_id()
        given_uid = _given_uid() if given is not None else None
        database.load(copy)
        target = storage if storage is not None else DirectoryStorage(data_dir)
        newest = _skip_given_job_ids(database, given, target.logs.job_ids())
        uid = skip_uids(given_uid)
        is_elsewhere = _is_elsewhere(target, data_dir)
        for name in manifest["files"]:
            is_stored = is_elsewhere and Path(name).parts[0] in STORED
            if name != database.file_name and not is_stored:
                _put_back(root / name, data_dir / name)
        if is_elsewhere:
            StorageMove(DirectoryStorage(root), target).run()
    return BackupReport(
        path=source,
        created_at=str(manifest["created_at"]),
        engine=database.engine,
        files=len(manifest["files"]),
        size=source.stat().st_size,
        newest_job_id=newest,
        newest_uid=uid,
        audit_head=str(manifest.get("audit_head", "")),
    )


def _skip_given_job_ids(database: DatabaseCopy, given: int | None, logged: Set[int]) -> int:
    """Exclude the IDs of jobs newer than the backup from new jobs."""
    newest = max([database.newest_job_id() or 0, given or 0, *logged])
    if given is None:
        # The database is lost, and with it the numbers used since the backup.
        newest += UNKNOWN_JOB_IDS
    database.skip_job_ids(newest)
    return newest


def _given_uid() -> int | None:
    """Return the highest tenant's Unix user ID in the replaced database; None if unreadable."""
    try:
        return newest_uid()
    except DatabaseError:
        return None


def _is_elsewhere(storage: FileStorage, data_dir: Path) -> bool:
    """Return whether the storage is an object store or another directory."""
    return storage.local_path(ROUNDS) != data_dir / ROUNDS


def _fetched(storage: FileStorage, folders: Collection[str], scratch: Path) -> Path:
    """Copy files of another storage into a directory with the layout of a data directory."""
    root = scratch / "files"
    StorageMove(
        storage,
        DirectoryStorage(root),
        folders=[name for name in folders if name in STORED and name != LOGS],
        with_logs=LOGS in folders,
    ).run()
    return root


def _files(data_dir: Path, names: list[str]) -> dict[str, Path]:
    """Return plain files by their path below the data directory, without links."""
    found: dict[str, Path] = {}
    for name in names:
        root = data_dir / name
        candidates = [root] if root.is_file() else sorted(root.rglob("*")) if root.is_dir() else []
        for path in candidates:
            if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                found[path.relative_to(data_dir).as_posix()] = path
    return found


def _write(
    target: Path, files: Mapping[str, Path], facts: Mapping[str, str], *, now: datetime
) -> int:
    """Write the archive: all files, then the manifest with the digests of the written bytes."""
    digests: dict[str, dict[str, Any]] = {}
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, path in files.items():
            entry = _add(archive, name, path)
            if entry is not None:
                digests[name] = entry
        manifest = {
            "format": FORMAT,
            "created_at": now.isoformat(),
            **facts,
            "migrations": sorted(recorded_migrations(connection)),
            "files": digests,
        }
        _add_text(archive, MANIFEST, json.dumps(manifest, indent=1, sort_keys=True))
        archive.close()
        raw.flush()
        os.fsync(raw.fileno())
    return len(digests)


def _add(archive: tarfile.TarFile, name: str, path: Path) -> dict[str, Any] | None:
    """Add a file up to its size at the opening: logs grow, and files are pruned."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256()
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, _OWNER_ONLY
        archive.addfile(info, _Digesting(file, size, digest))
    return {"size": size, "sha256": digest.hexdigest()}


class _Digesting:
    """Reads ``size`` bytes of a file and hashes them."""

    def __init__(self, file: BinaryIO, size: int, digest: Any) -> None:
        self._file, self._left, self._digest = file, size, digest

    def read(self, amount: int = -1) -> bytes:
        """Read up to ``amount`` of the remaining bytes."""
        wanted = self._left if amount < 0 else min(amount, self._left)
        chunk = self._file.read(wanted)
        self._left -= len(chunk)
        self._digest.update(chunk)
        return chunk


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        info = tarfile.TarInfo(name)
        info.size, info.mode = file.tell(), _OWNER_ONLY
        file.seek(0)
        archive.addfile(info, file)


def _unpack(source: Path, root: Path) -> dict[str, Any]:
    """Extract plain files only, and return the manifest."""
    try:
        with tarfile.open(source, mode="r:gz") as archive:
            for member in archive:
                _extract(archive, member, root)
        manifest = _read_manifest(root / MANIFEST)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UnusableBackupError(f"{source} cannot be read as a backup: {error}") from error
    return manifest


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    parts = Path(member.name).parts
    if not member.isreg() or member.name.startswith("/") or ".." in parts or not parts:
        raise UnusableBackupError(f"the backup holds {member.name!r}, which is not a regular file")
    target = root.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = archive.extractfile(member)
    if file is None:
        raise UnusableBackupError(f"the backup's file {member.name!r} cannot be read")
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with file, os.fdopen(handle, "wb") as written:
        shutil.copyfileobj(file, written, _CHUNK)


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_file() or path.stat().st_size > MOST_MANIFEST_BYTES:
        raise UnusableBackupError(
            "the file has no manifest: it is not a backup, or it is incomplete"
        )
    try:
        manifest = json.loads(path.read_bytes())
    except ValueError as error:
        raise UnusableBackupError(f"the backup's manifest cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UnusableBackupError("the backup has a format that this version does not support")
    if not isinstance(manifest.get("files"), dict):
        raise UnusableBackupError("the backup's manifest lists no files")
    return manifest


def _check(manifest: Mapping[str, Any], root: Path, database: DatabaseCopy) -> None:
    if manifest.get("engine") != database.engine:
        raise UnusableBackupError(
            f"the backup is of {manifest.get('engine')}; this installation uses {database.engine}"
        )
    if database.file_name not in manifest["files"]:
        raise UnusableBackupError("the backup contains no database")
    recorded = [(str(app), str(name)) for app, name in manifest.get("migrations", [])]
    if why := refusal(recorded, subject="the backup"):
        raise UnusableBackupError(why)
    for name, expected in manifest["files"].items():
        top, *below = Path(name).parts
        if top not in {database.file_name, *KEYS, ROUNDS, LOGS} or ".." in below:
            raise UnusableBackupError(f"the backup's file {name!r} is not expected")
        path = root / name
        if not path.is_file() or _digest(path) != expected.get("sha256"):
            raise UnusableBackupError(f"the backup's file {name!r} is damaged or missing")


def _put_back(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if target.is_symlink():
        target.unlink()
    source.replace(target)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in _chunks(file):
            digest.update(chunk)
    return digest.hexdigest()


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk
