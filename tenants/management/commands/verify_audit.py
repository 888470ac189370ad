"""``manage.py verify_audit``: checks the hash chain over the audit."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from tenants.audit_chain import Head, head, verify


class Command(BaseCommand):
    """Check every audit row against its link."""

    help = (
        "Check that no audit row was changed, deleted, inserted or reordered; names the first row "
        "that does not fit and exits with 1."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """A head that was published."""
        parser.add_argument(
            "--head",
            default="",
            metavar="POSITION:HASH",
            help="a head from a log or a backup, which the chain must contain",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the head, or the first row that does not fit."""
        try:
            published = Head.read(options["head"]) if options["head"] else None
        except ValueError as error:
            raise CommandError(str(error)) from error
        # One view of both tables: rows that are recorded meanwhile are not seen.
        with transaction.atomic():
            _hold_view()
            broken, found = verify(published), head()
        if broken is not None:
            self.stdout.write(broken.text)
            sys.exit(1)
        self.stdout.write(f"The audit is intact. Head {found}")


def _hold_view() -> None:
    connection = transaction.get_connection()
    if connection.vendor == "postgresql" and len(connection.atomic_blocks) == 1:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
