"""Command ``manage.py backup FILE``: write database, keys and optional data to one file."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from scheduling.maintenance.backup import make_backup
from scheduling.maintenance.databases import UnusableBackupError, database_copy
from scheduling.storage.opening import open_storage
from tenants.clock import database_now


class Command(BaseCommand):
    """Write a backup during operation."""

    help = "Write a backup (database, keys, uploads) to FILE while the portal is running."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add arguments for the file and the optional content."""
        parser.add_argument("file", type=Path, metavar="FILE", help="must not exist")
        parser.add_argument("--rounds", action="store_true", help="include stored rounds")
        parser.add_argument("--logs", action="store_true", help="include job logs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write it, and report its content."""
        try:
            report = make_backup(
                target=options["file"].absolute(),
                data_dir=Path(settings.TESSERA.data_dir),
                storage=open_storage(settings.TESSERA.storage),
                database=database_copy(settings.DATABASES["default"]),
                now=database_now(),
                with_rounds=options["rounds"],
                with_logs=options["logs"],
            )
        except (UnusableBackupError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{report.path}: {report.files} files, {report.size} bytes, "
            f"audit head {report.audit_head}"
        )
