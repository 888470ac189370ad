"""``manage.py migrate``, refused for databases that this version cannot upgrade."""

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connections

from portal.migration_rules import RELEASE, RELEASED, migrations_since_release, oldest_release
from tenants.migration_history import database_refusal, record_release, recorded_migrations


class Command(migrate.Command):
    """Django's command, refused if the database has migrations that this version lacks.

    Migrations of the next release are accepted if that release works with this one at the same
    time; then there is nothing to do.
    """

    def handle(self, *args: Any, **options: Any) -> None:
        connection = connections[options["database"]]
        recorded = recorded_migrations(connection)
        if why := database_refusal(connection, recorded, release=RELEASE):
            raise CommandError(why)
        is_whole = not (options["app_label"] or options["plan"] or options["check_unapplied"])
        oldest = oldest_release(each for app in RELEASED for each in migrations_since_release(app))
        if is_whole:  # first, so hosts of the previous release stay ready during the migrations
            record_release(connection, number=RELEASE, oldest=oldest)
        super().handle(*args, **options)
        if is_whole:  # the table may be new
            record_release(connection, number=RELEASE, oldest=oldest)
