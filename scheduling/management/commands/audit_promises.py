"""Command ``manage.py audit_promises``: audit the sharing promise of one virtual cluster.

With FILE, an export, it needs no database, no Redis and no secrets.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import orjson
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.common.canonical_json import canonical_json
from scheduling.core.promises.audit import audit
from scheduling.core.promises.export import PromiseExport, read_export
from scheduling.management.from_rounds import read_moment, virtual_cluster_named
from scheduling.storage.opening import open_storage
from scheduling.what_if.services.promises import promise_export
from tenants.clock import database_now
from tenants.errors import DomainError

SHOWN: Final = 20


class Command(BaseCommand):
    """Compare the waits of guaranteed jobs with those on a private cluster."""

    help = "Audit the sharing promise from an export, or from the stored rounds of this database."
    requires_system_checks: list[str] = []  # noqa: RUF012 (as the base class declares it)
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the source and the output."""
        parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="an export")
        parser.add_argument(
            "--vc", metavar="NAME", help="virtual cluster; required if there are several"
        )
        parser.add_argument("--since", metavar="ISO8601", help="default: one day before --until")
        parser.add_argument("--until", metavar="ISO8601", help="default: now")
        parser.add_argument(
            "--export", type=Path, metavar="FILE", help="write the export to this file"
        )
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write the result to this file"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Audit, and print the verdicts.

        Raises:
            CommandError: a job is violated, or an argument is not valid.
        """
        try:
            export = _read(options["file"]) if options["file"] else _from_database(options)
            if options["export"]:
                options["export"].write_bytes(canonical_json(export) + b"\n")
            result = audit(export).to_json()
            if options["json"]:
                text = json.dumps(result, indent=1) + "\n"
                options["json"].write_text(text, encoding="utf-8")
        except DomainError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"cannot read or write: {error}") from error
        except ValueError as error:
            raise CommandError(f"{options['file']} is not a readable export: {error}") from error
        self._print(result)
        violated = result["verdicts"]["violated"]
        if violated:
            raise CommandError(f"{violated} of {len(result['jobs'])} jobs: promise violated")

    def _print(self, result: Mapping[str, Any]) -> None:
        since, until = (
            datetime.fromtimestamp(result[name], tz=UTC).strftime("%Y-%m-%d %H:%M")
            for name in ("since", "until")
        )
        self.stdout.write(f"{result['virtual_cluster']} from {since} to {until} UTC")
        for name in ("verdicts", "causes", "own_wait_s", "private_wait_s", "return_s"):
            self.stdout.write(f"{name}: {json.dumps(result[name])}")
        beyond = [job for job in result["jobs"] if job["verdict"] != "kept"]
        for job in beyond[:SHOWN]:
            self.stdout.write(
                f"job {job['job']}: {job['verdict']} ({', '.join(job['causes'])}), waited "
                f"{job['own_wait_s']:g} s, bound {job['bound_s']:g} s"
            )
        if len(beyond) > SHOWN:
            self.stdout.write(f"and {len(beyond) - SHOWN} more; --json FILE has all of them")


def _read(path: Path) -> PromiseExport:
    document = orjson.loads(path.read_bytes())
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (reported like all other faults)
    return read_export(document)


def _from_database(options: Mapping[str, Any]) -> PromiseExport:
    now = database_now()
    until = read_moment("--until", options["until"]) or now
    return promise_export(
        vc=virtual_cluster_named(options["vc"]),
        since=read_moment("--since", options["since"]) or until - timedelta(days=1),
        until=until,
        storage=open_storage(settings.TESSERA.storage),
        now=now,
    )
