"""Compatibility of this version with a database, by its migrations and its release."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Final

from django.db import IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations import Migration as DiskMigration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from tenants.models.schema import ONLY_ID, SchemaRelease

Migration = tuple[str, str]

BEFORE_INITIAL: Final[Migration] = ("tenants", "0002_audit_append_only")
"""Name recorded by databases from before the single initial migration per app."""
RELEASE_TABLE: Final[Migration] = ("tenants", "0005_schema_release")
"""Migration from which on a database records its release."""
MOST_NAMES: Final = 3


@cache
def disk_migrations() -> Mapping[Migration, DiskMigration]:
    """Return the migrations of this version; read once, since it imports all of them."""
    found: dict[Migration, DiskMigration] = MigrationLoader(
        None, ignore_no_migrations=True
    ).disk_migrations
    return found


@cache
def known_migrations() -> frozenset[Migration]:
    """Return app label and name of each migration of this version, squashed ones included."""
    on_disk = disk_migrations()
    squashed = (pair for migration in on_disk.values() for pair in migration.replaces)
    return frozenset((*on_disk, *squashed))


def missing_migrations(recorded: AbstractSet[Migration]) -> list[Migration]:
    """Return the migrations of this version that a database has not run, in order."""
    return sorted(
        pair
        for pair, migration in disk_migrations().items()
        if pair not in recorded and not (migration.replaces and recorded >= {*migration.replaces})
    )


def recorded_migrations(connection: BaseDatabaseWrapper) -> set[Migration]:
    """Return app label and name of each migration that a database records; none if it is new."""
    return set(MigrationRecorder(connection).applied_migrations())


def recorded_release(
    connection: BaseDatabaseWrapper, recorded: AbstractSet[Migration]
) -> SchemaRelease | None:
    """Return the newest release that migrated a database; None if it is not recorded."""
    if RELEASE_TABLE not in recorded:
        return None
    return SchemaRelease.objects.using(connection.alias).first()


def database_refusal(
    connection: BaseDatabaseWrapper, recorded: AbstractSet[Migration], *, release: int
) -> str:
    """Return why a release cannot use a database, with the remedy; empty if it can."""
    subject = "the database"
    if not refusal(recorded, subject=subject):
        return ""
    migrated_by = recorded_release(connection, recorded)
    return refusal(recorded, subject=subject, release=release, migrated_by=migrated_by)


def record_release(connection: BaseDatabaseWrapper, *, number: int, oldest: int) -> None:
    """Record that a release migrates a database, unless a newer one has done so.

    Args:
        connection: the database.
        number: the release.
        oldest: the oldest release whose processes work with the tables of this one.
    """
    if RELEASE_TABLE not in recorded_migrations(connection):
        return
    rows = SchemaRelease.objects.using(connection.alias)
    for _ in range(2):
        if rows.filter(number__lte=number).update(number=number, oldest=oldest) or rows.exists():
            return
        try:
            with transaction.atomic(using=connection.alias):
                rows.create(id=ONLY_ID, number=number, oldest=oldest)
        except IntegrityError:  # another host has created it
            continue
        return


def refusal(
    recorded: Iterable[Migration],
    *,
    subject: str,
    release: int = 0,
    migrated_by: SchemaRelease | None = None,
) -> str:
    """Return why this version cannot use a database, with the remedy; empty if it can.

    Migrations of apps that are not installed do not count. Migrations that this version does not
    have are accepted only if the release that ran them is compatible with this one.

    Args:
        recorded: the migrations that the database or the manifest of a backup records.
        subject: name of the database in the message, such as "the database".
        release: number of this release.
        migrated_by: the newest release that migrated the database; None if that is unknown.
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
    if migrated_by is not None and migrated_by.number <= release:
        migrated_by = None  # a development version has run them
    if unknown and (migrated_by is None or release < migrated_by.oldest):
        names = ", ".join(".".join(pair) for pair in unknown[:MOST_NAMES])
        return (
            f"{subject} was used by a newer version: it has migrations that this version does not"
            f" have ({names}). {_remedy(release, migrated_by)}"
        )
    return ""


def _remedy(release: int, migrated_by: SchemaRelease | None) -> str:
    if migrated_by is None:
        return "Install that version"
    return (
        f"Release {migrated_by.number} has migrated it and works at the same time with release"
        f" {migrated_by.oldest} or later; this is release {release}. Install release"
        f" {migrated_by.number}"
    )
