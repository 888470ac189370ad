"""Command ``manage.py restore FILE``: restore a backup while no process of Tessera runs."""

import fcntl
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from scheduling.maintenance.backup import restore_backup
from scheduling.maintenance.databases import (
    DatabaseCopy,
    StillRunningError,
    UnusableBackupError,
    database_copy,
)
from scheduling.storage.opening import open_storage


class Command(BaseCommand):
    """Restore a backup. Refused while any process of the installation runs."""

    help = (
        "Restore a backup. Stop all processes first; the old SQLite file is retained next to "
        "the new one."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add arguments for the file and the confirmation."""
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument(
            "--yes", action="store_true", help="replace existing data without asking"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Check that nothing runs, request confirmation, and restore."""
        data_dir = Path(settings.TESSERA.data_dir)
        database = database_copy(settings.DATABASES["default"])
        if not options["yes"]:
            _ask(data_dir)
        try:
            with _nothing_runs(data_dir, database):
                report = restore_backup(
                    source=options["file"],
                    data_dir=data_dir,
                    database=database,
                    storage=open_storage(settings.TESSERA.storage),
                )
        except (UnusableBackupError, StillRunningError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"Restored the backup of {report.created_at}. New jobs get IDs above "
            f"{report.newest_job_id}, new tenants Unix user IDs above {report.newest_uid}. Run "
            f"migrate, then start."
        )


def _ask(data_dir: Path) -> None:
    try:
        answer = input(f"Replace everything in {data_dir}? [yes/no] ")
    except EOFError:
        raise CommandError(
            "no changes were made: restore asks before it replaces data, but there is no "
            "terminal; use --yes to replace without asking"
        ) from None
    if answer != "yes":
        raise CommandError("no changes were made")


@contextmanager
def _nothing_runs(data_dir: Path, database: DatabaseCopy) -> Iterator[None]:
    """Hold the supervisor's lock inside the block, and refuse other database users."""
    lock = data_dir / "run" / "supervisor.lock"
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StillRunningError("a supervisor runs on this data directory; stop it") from error
        users = database.users()
        if users:
            raise StillRunningError(f"{'; '.join(users[:5])}; stop all processes first")
        yield
