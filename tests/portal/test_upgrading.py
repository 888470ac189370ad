"""A database of an older version becomes what a new one is, though a new one takes fewer steps."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from scheduling.core.logrules import DEFAULT_RULES
from scheduling.models import LogRule
from tests.support.databases import default_of_its_own, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

MIDST = {"tenants": "0004_used_so_far", "scheduling": "0014_import_rules", "workers": None}
ALL = {
    "tenants": "0008_forms_that_were_sent",
    "scheduling": "0027_lines_of_waiting_jobs",
    "workers": "0002_samples_know_their_batch",
}
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


@pytest.mark.parametrize("reached", [MIDST, ALL], ids=["midst", "all"])
def test_a_database_of_an_older_version_becomes_what_a_new_one_is(
    reached: Mapping[str, str | None], real_database: None, tmp_path: Path
) -> None:
    new_schema, new_rows = schema(), rows()
    folder = tmp_path / "older"
    folder.mkdir()

    with default_of_its_own(folder):
        migrate_step_by_step(reached)
        call_command("migrate", verbosity=0)

        assert schema() == new_schema
        assert rows() == new_rows
        assert not pending()


def test_the_rules_of_a_new_database_are_those_of_every_installation(real_database: None) -> None:
    kept = LogRule.objects.values_list("name", "pattern", "action")

    assert set(kept) == {(rule.name, rule.pattern, rule.action) for rule in DEFAULT_RULES}


def test_a_rule_that_an_admin_has_changed_stays_so_when_the_others_are_renewed(
    real_database: None,
) -> None:
    call_command("migrate", "scheduling", "0028", verbosity=0)
    LogRule.objects.filter(name="GPU lost").update(pattern="GPU is gone")

    call_command("migrate", "scheduling", verbosity=0)

    kept = dict(LogRule.objects.values_list("name", "pattern"))
    renewed = {rule.name: rule.pattern for rule in DEFAULT_RULES}
    assert kept == renewed | {"GPU lost": "GPU is gone"}


def test_what_is_made_at_once_can_be_taken_back(real_database: None) -> None:
    ours = {name for name in table_names() if name.startswith(tuple(ALL))}

    call_command("migrate", "tenants", "zero", verbosity=0)

    assert ours
    assert not ours & set(table_names())


def migrate_step_by_step(reached: Mapping[str, str | None]) -> None:
    """Bring an empty database to where versions without squashed migrations have left it."""
    executor = MigrationExecutor(connection)
    executor.loader = MigrationLoader(connection, replace_migrations=False)
    others = [key for key in executor.loader.graph.leaf_nodes() if key[0] not in reached]
    executor.migrate([*others, *((app, name) for app, name in reached.items() if name)])
    squashed = set(executor.loader.replacements)
    for row in MigrationRecorder(connection).migration_qs:
        if (row.app, row.name) in squashed:
            row.delete()


def pending() -> list[Any]:
    """Migrations that a database of the present version would still have to run or to note."""
    executor = MigrationExecutor(connection)
    noted = set(MigrationRecorder(connection).applied_migrations())
    ends = executor.loader.graph.leaf_nodes()
    return [*executor.migration_plan(ends), *(set(executor.loader.replacements) - noted)]


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
