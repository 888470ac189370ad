"""Brings an installation up to date: schema, first admin, and the demo where it is wanted."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from portal import wiring
from portal.supervisor import accounts, demo_content
from portal.supervisor.files import write_private


class Command(BaseCommand):
    """What ``tessera up`` runs before it starts the portal; safe to run again."""

    help = "Migrate, and make the first admin (and the demo) where they are missing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Name the two files through which the supervisor speaks: passwords are in them."""
        parser.add_argument("--order", type=Path, required=True, help="JSON: what is wanted")
        parser.add_argument("--answer", type=Path, required=True, help="JSON: what was made")

    def handle(self, *, order: Path, answer: Path, **_: Any) -> None:
        """Migrate and make what is missing."""
        try:
            wanted = json.loads(order.read_text())
        except (OSError, ValueError) as error:
            raise CommandError(f"--order {order} cannot be read: {error}") from error
        call_command("migrate", verbosity=1, interactive=False, stdout=self.stdout)
        logins = accounts.ensure_admin(
            password=wanted["admin_password"], is_chosen=wanted["is_chosen"]
        )
        if wanted["demo_nodes"]:
            logins |= demo_content.seed(Path(wanted["demo_nodes"]))
        write_private(answer, json.dumps({"logins": logins}))
        # The message waits for the first worker, so that nobody waits for the first tick.
        wiring.enqueue_round(cause="start")
