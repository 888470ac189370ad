"""``manage.py migrate``, refused for databases that this version cannot upgrade."""

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connections

from tenants.migration_history import recorded_migrations, refusal


class Command(migrate.Command):
    """Django's command, refused if the database has migrations that this version lacks."""

    def handle(self, *args: Any, **options: Any) -> None:
        recorded = recorded_migrations(connections[options["database"]])
        if why := refusal(recorded, subject="the database"):
            raise CommandError(why)
        super().handle(*args, **options)
