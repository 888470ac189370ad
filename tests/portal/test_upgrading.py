"""New databases, upgrades of older ones, and databases that this version refuses."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from portal.migration_rules import RELEASE
from scheduling.clusters.models import Device
from scheduling.core.watching.log_rules import DEFAULT_RULES
from scheduling.watching.models import LogRule
from tenants.models import SchemaRelease
from tests.support.databases import default_of_its_own, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

INITIAL = {
    "tenants": "0002_audit_triggers",
    "scheduling": "0002_log_rules",
    "workers": "0001_initial",
}
"""What a database of the first version has run; later migrations upgrade it."""
BEFORE_INITIAL = (("tenants", "0002_audit_append_only"), ("scheduling", "0015_watching"))
NUMBERED_IN_TURN = {
    "django_content_type": "SELECT app_label, model FROM django_content_type",
    "auth_permission": """SELECT kind.app_label, kind.model, codename, auth_permission.name
        FROM auth_permission JOIN django_content_type kind ON kind.id = content_type_id""",
}
"""Without the numbers: they follow the order in which migrations have made the models."""

CATALOGUES = {
    "sqlite": ("SELECT type, tbl_name, name, sql FROM sqlite_master",),
    "postgresql": (
        """SELECT table_name, column_name, udt_name, character_maximum_length, is_nullable,
                  column_default, is_identity
           FROM information_schema.columns WHERE table_schema = 'public'""",
        """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
           FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    ),
}


@pytest.mark.timeout(400)  # it runs all migrations twice
@pytest.mark.parametrize("reached", [INITIAL], ids=["initial"])
def test_a_database_of_an_older_version_becomes_what_a_new_one_is(
    reached: Mapping[str, str], real_database: None, tmp_path: Path
) -> None:
    new_schema, new_rows = schema(), rows()
    folder = tmp_path / "older"
    folder.mkdir()

    with default_of_its_own(folder):
        migrate_to(reached)
        call_command("migrate", verbosity=0)

        assert schema() == new_schema
        assert rows() == new_rows
        assert not pending()


def test_of_two_devices_with_one_uuid_the_first_healthy_one_keeps_it(
    real_database: None, tmp_path: Path
) -> None:
    folder = tmp_path / "older"
    folder.mkdir()

    with default_of_its_own(folder):
        migrate_to({**INITIAL, "scheduling": "0004_promise_audit"})
        then = MigrationExecutor(connection).loader.project_state(
            [("scheduling", "0004_promise_audit")]
        )
        add_devices(then.apps, [("a", True), ("b", False), ("b", True), ("b", True), ("", True)])
        call_command("migrate", verbosity=0)

        found = Device.objects.order_by("index").values_list("uuid", flat=True)

        assert list(found) == ["a", "", "b", "", "", "b"]


def add_devices(apps: Any, devices: list[tuple[str, bool]]) -> None:
    """Add devices of one node by UUID and health, and a retired one with the last UUID."""
    now = datetime(2026, 11, 1, tzinfo=UTC)
    node = apps.get_model("scheduling", "Node").objects.create(
        name="gpu-1", state_since=now, created_at=now
    )
    for index, (uuid, healthy) in enumerate([*devices, ("b", True)]):
        apps.get_model("scheduling", "Device").objects.create(
            node=node, index=index, address=f"gpu-1/{index}", chain="A100", device_type="A100",
            uuid=uuid, healthy=healthy, retired_at=now if index == len(devices) else None,
        )  # fmt: skip


@pytest.mark.parametrize("command", ["migrate", "set_up"])
def test_a_database_from_before_the_initial_migrations_is_refused(
    command: str, real_database: None
) -> None:
    record(*BEFORE_INITIAL)

    with pytest.raises(CommandError, match=r"development version.*new data directory"):
        call_command(command, verbosity=0)


@pytest.mark.parametrize("command", ["migrate", "set_up"])
def test_a_database_of_a_newer_version_is_refused(command: str, real_database: None) -> None:
    record(("scheduling", "9999_newer"))

    with pytest.raises(CommandError, match=r"newer version.*\(scheduling\.9999_newer\)"):
        call_command(command, verbosity=0)


NEWER = ("scheduling", "9999_newer")


def test_the_next_release_leaves_a_database_for_this_one(real_database: None) -> None:
    record(NEWER)
    SchemaRelease.objects.update(number=RELEASE + 1, oldest=RELEASE)

    for command in ("migrate", "set_up"):
        call_command(command, verbosity=0)

    (kept,) = SchemaRelease.objects.all()
    assert (kept.number, kept.oldest) == (RELEASE + 1, RELEASE)


@pytest.mark.parametrize("oldest", [RELEASE + 1, RELEASE + 2], ids=["pause", "two releases"])
def test_a_release_that_does_not_work_with_this_one_is_refused(
    oldest: int, real_database: None
) -> None:
    record(NEWER)
    SchemaRelease.objects.update(number=RELEASE + 2, oldest=oldest)

    expected = rf"Release {RELEASE + 2} .* this is release {RELEASE}\. Install"
    with pytest.raises(CommandError, match=expected):
        call_command("migrate", verbosity=0)


def test_each_release_records_itself_when_it_migrates(real_database: None) -> None:
    SchemaRelease.objects.update(number=RELEASE - 1, oldest=0)
    call_command("migrate", verbosity=0)
    SchemaRelease.objects.get(number=RELEASE, oldest=RELEASE - 1).delete()
    call_command("migrate", "tenants", verbosity=0)

    assert not SchemaRelease.objects.exists()
    call_command("migrate", verbosity=0)
    assert SchemaRelease.objects.filter(number=RELEASE).exists()


def test_migrations_of_apps_that_are_not_installed_do_not_matter(real_database: None) -> None:
    record(("axes", "0001_initial"))

    call_command("migrate", verbosity=0)


def test_a_new_database_has_the_default_log_rules(real_database: None) -> None:
    stored = LogRule.objects.values_list("name", "pattern", "action")

    assert set(stored) == {(rule.name, rule.pattern, rule.action) for rule in DEFAULT_RULES}


def test_the_initial_migrations_can_be_reversed(real_database: None) -> None:
    ours = {name for name in table_names() if name.startswith(tuple(INITIAL))}

    call_command("migrate", "tenants", "zero", verbosity=0)

    assert ours
    assert not ours & set(table_names())


def migrate_to(reached: Mapping[str, str]) -> None:
    """Bring an empty database to where an older version has left it."""
    executor = MigrationExecutor(connection)
    others = [key for key in executor.loader.graph.leaf_nodes() if key[0] not in reached]
    executor.migrate([*others, *reached.items()])


def record(*migrations: tuple[str, str]) -> None:
    """Note migrations as applied, without running any."""
    for app, name in migrations:
        MigrationRecorder(connection).record_applied(app, name)


def pending() -> list[Any]:
    """Migrations that the database has not run."""
    executor = MigrationExecutor(connection)
    return executor.migration_plan(executor.loader.graph.leaf_nodes())


def schema() -> list[str]:
    """Tables, columns, constraints, indexes, triggers and functions, as the database has them.

    The columns of a table are in no order: SQLite puts one that has changed behind the others.
    """
    with connection.cursor() as cursor:
        return sorted(
            repr(list(_in_no_order(row)))
            for ask in CATALOGUES[connection.vendor]
            for row in _all(cursor, ask)
        )


def rows() -> dict[str, list[str]]:
    """What migrations have written, by table; without the notes of the migrations themselves."""
    with connection.cursor() as cursor:
        names = [name for name in table_names() if name != "django_migrations"]
        asks = {name: f'SELECT * FROM "{name}"' for name in names} | NUMBERED_IN_TURN
        return {name: sorted(map(repr, _all(cursor, ask))) for name, ask in asks.items()}


def table_names() -> list[str]:
    """The tables that there are."""
    return connection.introspection.table_names()


def _in_no_order(row: tuple[Any, ...]) -> Iterator[Any]:
    """A row, with the statement that makes a table as the sorted parts of it."""
    for value in row:
        if isinstance(value, str) and value.startswith("CREATE TABLE"):
            _, _, inner = value.removesuffix(")").partition("(")
            yield sorted(inner.split(", "))
        else:
            yield value


def _all(cursor: Any, ask: str) -> Iterator[tuple[Any, ...]]:
    cursor.execute(ask)
    yield from cursor.fetchall()
