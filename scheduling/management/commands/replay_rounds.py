"""Command ``manage.py replay_rounds``: decide stored rounds again, and report differences."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from scheduling.rounds.services.replaying import replay_stored_rounds
from scheduling.storage.opening import open_storage


class Command(BaseCommand):
    """Decides each stored round again; fails if a round of this version differs."""

    help = "Decides each stored round again; fails if a round of this decision version differs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the range of rounds."""
        parser.add_argument("--first", type=int, default=1, help="smallest round number")
        parser.add_argument("--last", type=int, default=None, help="largest round number")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print each difference, and the totals.

        Raises:
            CommandError: a round of this decision version differs or is not readable.
        """
        total = differing = older = bad = 0
        storage = open_storage(settings.TESSERA.storage)
        for found in replay_stored_rounds(
            storage=storage, first=options["first"], last=options["last"]
        ):
            total += 1
            older += not found.is_same_version
            if found.unreadable:
                bad += 1
                self.stdout.write(f"round {found.number}: {found.unreadable}")
            elif found.differs:
                differing += found.is_same_version
                fields = ", ".join(found.differs)
                self.stdout.write(f"round {found.number} (version {found.version}): {fields}")
        self.stdout.write(
            f"{total} stored rounds: {differing} of this version differ, "
            f"{older} of other versions, {bad} unreadable"
        )
        if differing or bad:
            raise CommandError("The replay does not give the stored decisions.")
