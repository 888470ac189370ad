"""Command ``manage.py check_invariants``: print violations; exit with 1 if there are any."""

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from scheduling.maintenance.invariants import violations


class Command(BaseCommand):
    """Check the rows from scratch."""

    help = "Check the invariants of the database; exit with status 1 if one is violated."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print one line for each violation."""
        found = violations(settings.SNAPSHOT_DATABASE)
        for violation in found:
            self.stdout.write(f"{violation.rule}: {violation.text}")
        if found:
            sys.exit(1)
        self.stdout.write("All invariants hold.")
