"""Command ``manage.py replay_sharing``: run cases of device sharing, one JSON line per result."""

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.core.sharing.replay import KINDS, CaseError, replay

_MOST_SEEDS = 10_000


class Command(BaseCommand):
    """Runs cases on the pure rules; needs no database, no Redis and no secrets."""

    help = "Run cases of device sharing and print one JSON line per answer."
    requires_system_checks: list[str] = []  # noqa: RUF012 (as the base class declares it)
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the kind, CASES.json and --seeds."""
        parser.add_argument("kind", choices=KINDS, help="kind of the cases")
        parser.add_argument("cases", type=Path, help="a file of cases")
        parser.add_argument("--seeds", default="1-20", help="seeds of plants, such as 1-20 or 1,3")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the results.

        Raises:
            CommandError: the file is not a document of cases of this kind.
        """
        path: Path = options["cases"]
        try:
            document = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise CommandError(f"cannot read {path}: {error}") from error
        seeds = _seeds(options["seeds"])
        try:
            for line in replay(options["kind"], document, seeds):
                self.stdout.write(json.dumps(line, allow_nan=False))
        except CaseError as error:
            raise CommandError(f"{path}: {error}") from error


def _seeds(text: str) -> list[int]:
    """Read ``1-20`` or ``1,3,5-7``."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise CommandError(f"--seeds: {text!r} is not a list of seeds. Use 1-20 or 1,3.")
        first, last = int(low), int(high if dash else low)
        if last < first or last - first >= _MOST_SEEDS:
            raise CommandError(f"--seeds: {part!r} is not a range of 1 to {_MOST_SEEDS} seeds.")
        seeds.extend(range(first, last + 1))
    return seeds
