"""Compatibility of this version with a database, by its recorded migrations."""

from collections.abc import Iterable
from functools import cache
from typing import Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

Migration = tuple[str, str]

BEFORE_INITIAL: Final[Migration] = ("tenants", "0002_audit_append_only")
"""Name recorded by databases from before the single initial migration per app."""
MOST_NAMES: Final = 3


@cache
def known_migrations() -> frozenset[Migration]:
    """Return app label and name of each migration of this version, squashed ones included."""
    on_disk = MigrationLoader(None, ignore_no_migrations=True).disk_migrations
    squashed = (pair for migration in on_disk.values() for pair in migration.replaces)
    return frozenset((*on_disk, *squashed))


def recorded_migrations(connection: BaseDatabaseWrapper) -> set[Migration]:
    """Return app label and name of each migration that a database records; none if it is new."""
    return set(MigrationRecorder(connection).applied_migrations())


def refusal(recorded: Iterable[Migration], *, subject: str) -> str:
    """Return why this version cannot use a database, with the remedy; empty if it can.

    Migrations of apps that are not installed do not count.

    Args:
        recorded: the migrations that the database or the manifest of a backup records.
        subject: name of the database in the message, such as "the database".
    """
    known = known_migrations()
    apps = {app for app, _ in known}
    unknown = sorted(pair for pair in set(recorded) - known if pair[0] in apps)
    if BEFORE_INITIAL in unknown:
        return (
            f"{subject} was created by a development version before 0.1.0 and cannot be upgraded."
            " Let its jobs end and export what you need with that version. Then start this version"
            " with a new data directory or a new PostgreSQL database (docs/operations.md,"
            ' "Databases of development versions")'
        )
    if unknown:
        names = ", ".join(".".join(pair) for pair in unknown[:MOST_NAMES])
        return (
            f"{subject} was used by a newer version: it has migrations that this version does not"
            f" have ({names}). Install that version"
        )
    return ""
