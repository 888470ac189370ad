"""Command ``manage.py replay_cells``: replay recorded scheduling events, one outcome per line."""

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.core.cells import CellError
from scheduling.core.cells.replay import replay_document
from scheduling.core.cells.spec import mapping, sequence


class Command(BaseCommand):
    """Replays cases on the cell engine; needs no database, no Redis and no secrets."""

    help = "Replay recorded cell scheduling cases and print one JSON line per event."
    requires_system_checks: list[str] = []  # noqa: RUF012 (as the base class declares it)
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare CASES.json and --case."""
        parser.add_argument("cases", type=Path, help="file with cases")
        parser.add_argument(
            "--case", nargs="+", action="extend", metavar="ID", help="run only these cases"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the outcomes.

        Raises:
            CommandError: the file is not a document of cases, or a named case is not in it.
        """
        path: Path = options["cases"]
        try:
            document = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise CommandError(f"cannot read {path}: {error}") from error
        only = set(options["case"]) if options["case"] else None
        try:
            _check_names(document, only or set())
            for line in replay_document(document, only):
                self.stdout.write(json.dumps(line))
        except CellError as error:
            raise CommandError(f"{path}: {error}") from error


def _check_names(document: object, wanted: set[str]) -> None:
    cases = sequence(mapping(document, "document").get("cases", []), "cases")
    known = {str(case.get("id")) for case in cases if isinstance(case, dict)}
    if wanted - known:
        raise CommandError(f"case not found: {', '.join(sorted(wanted - known))}")
