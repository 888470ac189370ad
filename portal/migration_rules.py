"""Rules of rolling upgrades: code of the previous release works with the tables of this one.

A change of tables takes two releases. The first one *expands*: it only adds what the previous
release can ignore. The second one *contracts*: its migration drops what no running code uses, and
says so with the class attribute ``contracts``. A migration that the previous release does not
survive has the class attribute ``needs_pause``; hosts of that release then report that they cannot
use the database.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from django.db.migrations import Migration
from django.db.migrations.operations import (
    AddConstraint,
    AddField,
    AlterField,
    AlterModelTable,
    CreateModel,
    DeleteModel,
    RemoveField,
    RenameField,
    RenameModel,
    RunSQL,
    SeparateDatabaseAndState,
)
from django.db.migrations.operations.base import Operation
from django.db.models import Field, ManyToManyField
from django.db.models.fields import NOT_PROVIDED

from tenants.migration_history import disk_migrations

RELEASED: Final[Mapping[str, str]] = {
    "tenants": "0004_installation_keys",
    "scheduling": "0025_suspect_devices",
    "workers": "0004_node_keys",
}
"""The newest migration of each app in the previous release; change it with each release."""

RELEASED_PROTOCOLS: Final = (3, 3)
"""Version of the node protocol that the previous release sends, and the newest that its node
programs understand."""

RELEASE: Final = 1
"""Number of this release; increase it with each change of ``RELEASED``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleViolation:
    """An operation with which the previous release does not work.

    Attributes:
        migration: app and name.
        subject: model and field.
        rule: what is wrong, and what to do instead.
    """

    migration: str
    subject: str
    rule: str

    def __str__(self) -> str:
        return f"{self.migration}: {self.subject}: {self.rule}"


def migrations_since_release(app_label: str) -> list[Migration]:
    """Return the migrations of an app after the previous release, in their order."""
    found = disk_migrations()
    names = sorted(name for label, name in found if label == app_label)
    newer = names[names.index(RELEASED[app_label]) + 1 :]
    return [found[app_label, name] for name in newer]


def oldest_release(migrations: Iterable[Migration]) -> int:
    """Return the oldest release whose processes work with the tables of this one.

    Args:
        migrations: all migrations since the previous release.
    """
    needs_pause = any(getattr(migration, "needs_pause", "") for migration in migrations)
    return RELEASE if needs_pause else RELEASE - 1


def violations(migrations: Iterable[Migration]) -> list[RuleViolation]:
    """Check the migrations of one app since the previous release, in their order.

    Tables and columns that these migrations create are not in use yet, and may change freely.
    """
    new: set[str] = set()
    found = []
    for migration in migrations:
        may_contract = any(getattr(migration, name, "") for name in ("contracts", "needs_pause"))
        for operation in _flat(migration.operations):
            subject, rule = _broken_rule(operation, new)
            if rule and not may_contract:
                name = f"{migration.app_label}.{migration.name}"
                found.append(RuleViolation(migration=name, subject=subject, rule=rule))
            _note(operation, new)
    return found


def _flat(operations: Iterable[Operation]) -> Iterable[Operation]:
    for operation in operations:
        if isinstance(operation, SeparateDatabaseAndState):
            yield from _flat(operation.database_operations)
        else:
            yield operation


def _note(operation: Operation, new: set[str]) -> None:
    """Record the tables and columns that no released code uses."""
    if isinstance(operation, CreateModel):
        new.add(operation.name_lower)
    elif isinstance(operation, AddField):
        new.add(f"{operation.model_name_lower}.{operation.name_lower}")
    elif isinstance(operation, RenameModel):
        if operation.old_name_lower in new:
            new.add(operation.new_name_lower)
    elif (
        isinstance(operation, RenameField)
        and f"{operation.model_name_lower}.{operation.old_name_lower}" in new
    ):
        new.add(f"{operation.model_name_lower}.{operation.new_name_lower}")


def _broken_rule(operation: Operation, new: set[str]) -> tuple[str, str]:
    """Return the subject and the broken rule; an empty rule if the operation only expands."""
    subject, rule = _table_rule(operation)
    if not rule:
        subject, rule = _column_rule(operation)
    table = subject.partition(".")[0]
    return subject, "" if subject in new or table in new else rule


def _table_rule(operation: Operation) -> tuple[str, str]:
    if isinstance(operation, RunSQL):
        return "RunSQL", "cannot be checked: state in `contracts` why the previous release works"
    if isinstance(operation, DeleteModel | AlterModelTable):
        return operation.name_lower, "the table is in use: drop it in a later release"
    if isinstance(operation, RenameModel):
        rule = "the table is in use: create a new one and copy, or keep `db_table`"
        return operation.old_name_lower, rule
    return "", ""


def _column_rule(operation: Operation) -> tuple[str, str]:
    rule = ""
    name = str(getattr(operation, "name", ""))
    if isinstance(operation, RemoveField):
        rule = "the column is in use: drop it in a later release"
    elif isinstance(operation, RenameField):
        name = operation.old_name
        rule = "the column is in use: add a new one and copy, or keep `db_column`"
    elif isinstance(operation, AddField):
        rule = _added(operation.field)
    elif isinstance(operation, AlterField):
        rule = _altered(operation.field)
    elif isinstance(operation, AddConstraint):
        name = str(operation.constraint.name)
        rule = "the previous release may write rows that break the constraint"
    return f"{getattr(operation, 'model_name', '')}.{name}".lower(), rule


def _added(field: "Field[object, object]") -> str:
    """The previous release inserts rows without the column."""
    if isinstance(field, ManyToManyField) or field.null:
        return ""
    if field.db_default is not NOT_PROVIDED:
        return ""
    return "NOT NULL without a default of the database: use `null=True` or `db_default`"


def _altered(field: "Field[object, object]") -> str:
    if isinstance(field, ManyToManyField) or field.null:
        return ""
    return "the previous release may write values that the new column refuses"
