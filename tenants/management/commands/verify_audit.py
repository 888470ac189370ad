"""``manage.py verify_audit``: checks the hash chain over the audit."""

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from tenants.audit_chain import Head, head, verify


class Command(BaseCommand):
    """Check every audit row against its link."""

    help = (
        "Check that no audit row was changed, deleted, inserted or reordered. Prints the first "
        "wrong row and exits with status 1."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the option for a published head."""
        parser.add_argument(
            "--head",
            default="",
            metavar="POSITION:HASH",
            help="head from a log or a backup that the chain must contain",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the head, or the first row that does not match."""
        try:
            published = Head.read(options["head"]) if options["head"] else None
        except ValueError as error:
            raise CommandError(str(error)) from error
        with _one_view():
            broken, found = verify(published), head()
        if broken is not None:
            self.stdout.write(broken.text)
            sys.exit(1)
        self.stdout.write(f"The audit log is intact. Head {found}")


@contextmanager
def _one_view() -> Iterator[None]:
    """Read a consistent view of both tables without blocking writers."""
    connection: Any = transaction.get_connection()
    if connection.vendor == "sqlite":
        usual, connection.transaction_mode = connection.transaction_mode, "DEFERRED"
        try:
            with transaction.atomic():
                yield
        finally:
            connection.transaction_mode = usual
        return
    with transaction.atomic():
        if len(connection.atomic_blocks) == 1:
            connection.cursor().execute(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
            )
        yield
