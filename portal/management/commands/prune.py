"""``manage.py prune``: deletes expired rows and files, as a periodic task does each hour."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from portal.tasks import age, node_retention, retention
from scheduling.maintenance.retention import Retention, prune
from scheduling.storage.opening import open_storage
from tenants.audit import Actor
from tenants.clock import database_now
from workers.conf import worker_settings
from workers.services import retention as workers_retention
from workers.services.retention import WorkerRetention

AGES = {
    "round_files": "round snapshots",
    "rounds": "round rows",
    "events": "events of ended jobs",
    "jobs": "ended jobs with all their data",
    "usage_jobs": "usage per job in closed months",
    "shared_minutes": "minutes of shared devices",
    "fleet": "intervals of the fleet's history",
    "archives": "uploaded archives, by last use",
    "audit": "audit log rows",
}
AGES_OF_NODES = {"logs": "logs of ended jobs", "goodput": "goodput samples of ended jobs"}


class Command(BaseCommand):
    """Delete expired rows and files, except rows and files of live jobs."""

    help = (
        "Delete logs, telemetry, rounds, events, ended jobs and audit rows whose retention "
        "has ended."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add one option for the retention of each kind of rows."""
        for keep, ages in ((retention(), AGES), (node_retention(), AGES_OF_NODES)):
            for name, words in ages.items():
                until: timedelta | None = getattr(keep, name)
                parser.add_argument(
                    f"--{name.replace('_', '-')}-days",
                    type=float,
                    default=-1.0 if until is None else until / timedelta(days=1),
                    metavar="N",
                    help=f"retention of {words} in days (default %(default)g; negative: no limit)",
                )
        parser.add_argument(
            "--round-bytes",
            type=int,
            default=retention().round_bytes,
            metavar="N",
            help="maximum total size of snapshots in bytes (default %(default)d)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete expired rows and files, and print their numbers."""
        if options["round_bytes"] < 0:
            raise CommandError("--round-bytes must not be negative")
        ages = {name: age(options[f"{name}_days"]) for name in (*AGES, *AGES_OF_NODES)}
        now = database_now()
        # Logs first: deleting the jobs deletes the rows with the paths of their logs.
        of_nodes = workers_retention.prune(
            retention=WorkerRetention(**{name: ages[name] for name in AGES_OF_NODES}),
            storage=worker_settings().storage,
            now=now,
        )
        pruned = prune(
            retention=Retention(
                round_bytes=options["round_bytes"], **{name: ages[name] for name in AGES}
            ),
            storage=open_storage(settings.TESSERA.storage),
            now=now,
            actor=Actor.system("manage.py prune"),
        )
        for name, words in AGES.items():
            self.stdout.write(f"{getattr(pruned, name)} {words}")
        for name, words in AGES_OF_NODES.items():
            self.stdout.write(f"{getattr(of_nodes, name)} {words}")
        self.stdout.write(f"{of_nodes.telemetry} telemetry rows")
