"""Command ``manage.py plan_grids``: run recorded cases of the planner, one result per line."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.core.grids import GridInputError
from scheduling.core.grids.cases import estimate_lines, pipeline_lines, regret_lines

CASES: Final[Mapping[str, Callable[[object], Iterator[dict[str, Any]]]]] = {
    "pipelines": pipeline_lines,
    "estimates": estimate_lines,
    "regrets": regret_lines,
}


class Command(BaseCommand):
    """Runs cases on the planner for hybrid parallelism; needs no database, Redis or secrets."""

    help = (
        "Run recorded cases of the planner and print JSON lines. pipelines: step time of each"
        " pipeline by replay. estimates: tuned plan of each configuration and stage count."
        " regrets: summary of what sampling and tuning lose on a file of estimates."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012 (as the base class declares it)
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the kind of cases and the file."""
        parser.add_argument("kind", choices=sorted(CASES))
        parser.add_argument("cases", type=Path, metavar="FILE.json", help="a file of cases")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the results.

        Raises:
            CommandError: the file is not a document of such cases.
        """
        path: Path = options["cases"]
        try:
            document = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise CommandError(f"cannot read {path}: {error}") from error
        try:
            for line in CASES[options["kind"]](document):
                self.stdout.write(json.dumps(line))
        except GridInputError as error:
            raise CommandError(f"{path}: {error}") from error
