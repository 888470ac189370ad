"""Copy and restore of a database at one instant: SQLite and PostgreSQL."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

from django.db import DatabaseError, connections

HEADER: Final = b"SQLite format 3\x00"
_OWNER_ONLY: Final = 0o600
_PAGES: Final = 2048
_JOBS: Final = "scheduling_job"
_SQLITE_SEQUENCE: Final = "SELECT seq FROM sqlite_sequence WHERE name = ?"


class UnusableBackupError(Exception):
    """A backup cannot be created or used; nothing has been changed."""


class StillRunningError(Exception):
    """Processes of the installation run; a restore would replace their database."""


class DatabaseCopy(Protocol):
    """One kind of database."""

    @property
    def engine(self) -> str:
        """Name of the database engine: ``sqlite`` or ``postgresql``."""
        ...

    @property
    def file_name(self) -> str:
        """Name of the copy inside a backup."""
        ...

    def dump(self, target: Path) -> None:
        """Write a copy as of one instant."""
        ...

    def check(self, source: Path) -> None:
        """Raise ``UnusableBackupError`` if the copy is incomplete or damaged."""
        ...

    def load(self, source: Path) -> None:
        """Replace the database by the copy."""
        ...

    def users(self) -> list[str]:
        """Return the other processes that have the database open, as text."""
        ...

    def newest_job_id(self) -> int | None:
        """Return the highest job ID that this database ever assigned, or None if unreadable."""
        ...

    def skip_job_ids(self, upto: int) -> None:
        """Assign IDs above ``upto`` to new jobs."""
        ...


def database_copy(settings: Mapping[str, Any], alias: str = "default") -> DatabaseCopy:
    """Return the copy implementation for the database of these settings.

    Args:
        settings: one entry of Django's ``DATABASES``.
        alias: alias of that entry.
    """
    if str(settings["ENGINE"]).endswith("sqlite3"):
        return SqliteCopy(path=Path(str(settings["NAME"])), alias=alias)
    return PostgresCopy(settings=settings, alias=alias)


class SqliteCopy:
    """A SQLite file, copied by SQLite's own online backup."""

    engine: Final = "sqlite"
    file_name: Final = "db.sqlite3"

    def __init__(self, *, path: Path, alias: str) -> None:
        self._path, self._alias = path, alias

    def dump(self, target: Path) -> None:
        """Copy the database page by page, as of one instant, without blocking writers."""
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
        connection = connections[self._alias]
        connection.ensure_connection()
        with closing(sqlite3.connect(target)) as copy:
            connection.connection.backup(copy, pages=_PAGES)
            # One file, without a separate journal.
            copy.execute("PRAGMA journal_mode=DELETE")
        self.check(target)

    def check(self, source: Path) -> None:
        """Run the integrity check of SQLite on the file."""
        with source.open("rb") as file:
            if file.read(len(HEADER)) != HEADER:
                raise UnusableBackupError("the backup's database is not an SQLite file")
        try:
            with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as copy:
                answer = copy.execute("PRAGMA integrity_check").fetchone()[0]
                faults = copy.execute("PRAGMA foreign_key_check").fetchone()
        except sqlite3.DatabaseError as error:
            raise UnusableBackupError(f"the backup's database is damaged: {error}") from error
        if answer != "ok" or faults:
            raise UnusableBackupError(f"the backup's database is damaged: {answer} {faults or ''}")

    def load(self, source: Path) -> None:
        """Install the file; the old one is stored next to it until the next restore."""
        connections.close_all()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._path.exists():
            kept = self._path.with_name(f"{self._path.name}.before-restore")
            kept.unlink(missing_ok=True)
            self._fold_journal()
            self._path.replace(kept)
        for suffix in ("-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        fresh = self._path.with_name(f".{self._path.name}.restoring")
        shutil.copyfile(source, fresh)
        fresh.chmod(_OWNER_ONLY)
        fresh.replace(self._path)

    def _fold_journal(self) -> None:
        """Merge the journal into the old file; a damaged one is unchanged."""
        try:
            with closing(sqlite3.connect(self._path)) as old:
                old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.DatabaseError:
            return

    def newest_job_id(self) -> int | None:
        """Read SQLite's own sequence, which deleted jobs do not lower."""
        try:
            # Not read-only: the journal is read, too.
            with closing(sqlite3.connect(f"file:{self._path}?mode=rw", uri=True)) as database:
                row = database.execute(_SQLITE_SEQUENCE, (_JOBS,)).fetchone()
        except sqlite3.DatabaseError:
            return None
        return int(row[0]) if row else 0

    def skip_job_ids(self, upto: int) -> None:
        """Advance the ID sequence of SQLite."""
        with closing(sqlite3.connect(self._path)) as database, database:
            row = database.execute(_SQLITE_SEQUENCE, (_JOBS,)).fetchone()
            if row is None:
                database.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (_JOBS, upto))
            elif row[0] < upto:
                database.execute(
                    "UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (upto, _JOBS)
                )

    def users(self) -> list[str]:
        """Return the processes that have the file open, as far as this user may see them."""
        found = []
        for folder in Path("/proc").glob("[0-9]*/fd"):
            pid = int(folder.parent.name)
            if pid != os.getpid() and self._is_open_in(folder):
                found.append(f"process {pid} has the database open")
        return found

    def _is_open_in(self, folder: Path) -> bool:
        wanted = self._path.resolve()
        try:
            return any(_points_to(link, wanted) for link in folder.iterdir())
        except OSError:
            return False


class PostgresCopy:
    """A PostgreSQL database, copied by ``pg_dump``; the password goes through the environment."""

    engine: Final = "postgresql"
    file_name: Final = "db.pgdump"

    def __init__(self, *, settings: Mapping[str, Any], alias: str) -> None:
        self._settings, self._alias = settings, alias

    def dump(self, target: Path) -> None:
        """Write a consistent dump in the custom format."""
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
        self._run("pg_dump", "--format=custom", "--no-owner", "--no-acl", f"--file={target}")

    def check(self, source: Path) -> None:
        """List the content with ``pg_restore``."""
        self._run("pg_restore", "--list", str(source), connect=False)

    def load(self, source: Path) -> None:
        """Replace everything in one transaction."""
        connections.close_all()
        self._run(
            "pg_restore",
            "--clean",
            "--if-exists",
            "--no-owner",
            "--no-acl",
            "--single-transaction",
            "--exit-on-error",
            f"--dbname={self._settings['NAME']}",
            str(source),
            connect=True,
        )

    def newest_job_id(self) -> int | None:
        """Read the sequence, which deleted jobs do not lower."""
        try:
            with connections[self._alias].cursor() as cursor:
                cursor.execute(
                    "SELECT pg_sequence_last_value(pg_get_serial_sequence(%s, 'id')::regclass)",
                    [_JOBS],
                )
                return int(cursor.fetchone()[0] or 0)
        except DatabaseError:
            return None

    def skip_job_ids(self, upto: int) -> None:
        """Raise the sequence."""
        newest = self.newest_job_id()
        if newest is not None and newest < upto:
            with connections[self._alias].cursor() as cursor:
                cursor.execute(
                    "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [_JOBS, upto]
                )

    def users(self) -> list[str]:
        """Return the other sessions in this database."""
        with connections[self._alias].cursor() as cursor:
            cursor.execute(
                "SELECT pid, coalesce(application_name, '') FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            )
            rows = cursor.fetchall()
        return [f"session {pid} {name}".rstrip() + " is open" for pid, name in rows]

    def _run(self, program: str, *arguments: str, connect: bool = True) -> None:
        environment = {**os.environ, **(self._environment() if connect else {})}
        try:
            done = subprocess.run(
                [program, *arguments],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise UnusableBackupError(
                f"{program} is not installed; install PostgreSQL's client programs"
            ) from error
        if done.returncode:
            raise UnusableBackupError(f"{program} failed: {done.stderr.strip()[-2000:]}")

    def _environment(self) -> dict[str, str]:
        names = {
            "PGDATABASE": "NAME",
            "PGHOST": "HOST",
            "PGPORT": "PORT",
            "PGUSER": "USER",
            "PGPASSWORD": "PASSWORD",
        }
        values = {variable: self._settings.get(key) for variable, key in names.items()}
        # Of several hosts, the one that accepts writes.
        values["PGTARGETSESSIONATTRS"] = self._settings.get("OPTIONS", {}).get(
            "target_session_attrs"
        )
        return {variable: str(value) for variable, value in values.items() if value}


def _points_to(link: Path, wanted: Path) -> bool:
    try:
        return link.readlink() == wanted
    except OSError:
        return False
