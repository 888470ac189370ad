"""``manage.py prune``: forgets old rounds, events, jobs and audit rows."""

from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from scheduling.services.retention import Retention, prune
from tenants.audit import Actor

KEEP = Retention()
AGES = {
    "round_files": "snapshots of rounds",
    "rounds": "rows of rounds",
    "events": "events of ended jobs",
    "jobs": "ended jobs with all that belongs to them",
    "audit": "the audit log",
}


class Command(BaseCommand):
    """Forget what is old. Live jobs lose nothing."""

    help = "Forget old rounds, events, ended jobs and audit rows. Live jobs lose nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One option for each kind of thing."""
        for name, words in AGES.items():
            kept: timedelta = getattr(KEEP, name)
            parser.add_argument(
                f"--{name.replace('_', '-')}-days",
                type=float,
                default=kept / timedelta(days=1),
                metavar="N",
                help=f"keep {words} for N days (default %(default)g; negative: for ever)",
            )
        parser.add_argument(
            "--round-bytes",
            type=int,
            default=KEEP.round_bytes,
            metavar="N",
            help="keep at most N bytes of snapshots (default %(default)d)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Prune, and say how much went."""
        if options["round_bytes"] < 0:
            raise CommandError("--round-bytes must not be negative")
        ages = {name: _age(options[f"{name}_days"]) for name in AGES}
        pruned = prune(
            retention=Retention(round_bytes=options["round_bytes"], **ages),
            data_dir=Path(settings.TESSERA.data_dir),
            now=timezone.now(),
            actor=Actor.system("manage.py prune"),
        )
        for name, words in AGES.items():
            self.stdout.write(f"{getattr(pruned, name)} {words}")


def _age(days: float) -> timedelta | None:
    return None if days < 0 else timedelta(days=days)
