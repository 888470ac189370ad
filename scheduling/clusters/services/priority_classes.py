"""Priority classes: names for priorities, of which exactly one is the default."""

import re
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import F

from scheduling.clusters.models import PriorityClass
from scheduling.common.edits import text_errors
from scheduling.core.messages import sentence
from tenants.audit import record
from tenants.edits import UNCHANGED, Unchanged, given, require_version, update_row
from tenants.errors import (
    ConflictError,
    DuplicateError,
    FieldError,
    InvalidError,
    NotFoundError,
)
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.messages import plain

LOWEST: Final = -1
HIGHEST: Final = 1000
KIND: Final = "priority class"
USUAL: Final = (
    ("crit", 120, "before all other classes"),
    ("prod", 100, "work that others depend on"),
    ("test", 10, "the default"),
    ("oppo", -1, "on idle devices, preempted at any time"),
)
"""Name, value and note of the classes that are usual in OpenPAI and at most sites."""
_USUAL_DEFAULT: Final = "test"
_NAME: Final = re.compile(r"[a-z]([a-z0-9_-]{0,38}[a-z0-9])?")


def create_priority_class(
    *, viewer: Viewer, name: str, value: int, note: str = "", is_default: bool = False
) -> PriorityClass:
    """Create a priority class.

    The first class is the default. A new default replaces the old one.

    Args:
        viewer: a cluster admin.
        name: name, as used in a job's ``priority``.
        value: -1 for opportunistic jobs, else 0 to 1000; higher values are tried first.
        note: free text.
        is_default: whether jobs without ``priority`` get this class.

    Raises:
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: another class has the name.
    """
    viewer.require(Permission.EDIT_PRIORITY_CLASSES, what="priority classes")
    values = {"name": name, "value": value, "note": note, "is_default": is_default}
    InvalidError.raise_if(_faults(values))
    try:
        with transaction.atomic():
            is_first = not PriorityClass.objects.exists()
            values["is_default"] = is_default or is_first
            _clear_default(values)
            row = PriorityClass.objects.create(**values, created_by_id=viewer.user_id)
            record(actor=viewer, action="priority_class.create", obj=row, after=values)
    except IntegrityError:
        raise _conflict(name) from None
    return row


def make_usual_classes(*, viewer: Viewer) -> None:
    """Create the classes in ``USUAL`` whose names are unused; an existing default remains.

    Raises:
        DuplicateError: another process created them concurrently.
    """
    taken = set(PriorityClass.objects.values_list("name", flat=True))
    default = PriorityClass.objects.filter(is_default=True).exists()
    for name, value, note in USUAL:
        if name not in taken:
            create_priority_class(
                viewer=viewer,
                name=name,
                value=value,
                note=note,
                is_default=name == _USUAL_DEFAULT and not default,
            )


def update_priority_class(
    *,
    viewer: Viewer,
    priority_class_id: int,
    name: str | Unchanged = UNCHANGED,
    value: int | Unchanged = UNCHANGED,
    note: str | Unchanged = UNCHANGED,
    is_default: bool | Unchanged = UNCHANGED,
    expected_version: int | None = None,
) -> PriorityClass:
    """Update a priority class; the priority of submitted jobs does not change.

    Raises:
        NotFoundError: the class is unknown.
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: another class has the name.
        ConflictError: no default class would remain.
        StaleEditError: the class was edited since ``expected_version``.
    """
    viewer.require(Permission.EDIT_PRIORITY_CLASSES, what="priority classes")
    values = given(name=name, value=value, note=note, is_default=is_default)
    InvalidError.raise_if(_faults(values))
    try:
        with transaction.atomic():
            row = _row(priority_class_id, expected_version)
            if row.is_default and values.get("is_default") is False:
                raise _needs_default(row)
            if not row.is_default:
                _clear_default(values)
            update_row(
                PriorityClass.objects.all(),
                row,
                kind=KIND,
                expected_version=expected_version,
                read_version=row.version,
                values=values,
                viewer=viewer,
                action="priority_class.update",
            )
    except IntegrityError:
        raise _conflict(str(values.get("name", "")), but=priority_class_id) from None
    return row


@transaction.atomic
def delete_priority_class(
    *, viewer: Viewer, priority_class_id: int, expected_version: int | None = None
) -> None:
    """Delete a priority class; the priority of submitted jobs does not change.

    Raises:
        NotFoundError: the class is unknown.
        ConflictError: the class is the default.
        StaleEditError: the class was edited since ``expected_version``.
    """
    viewer.require(Permission.EDIT_PRIORITY_CLASSES, what="priority classes")
    row = _row(priority_class_id, expected_version)
    if row.is_default:
        raise _needs_default(row)
    before = {"name": row.name, "value": row.value, "note": row.note}
    record(actor=viewer, action="priority_class.delete", obj=row, before=before)
    row.delete()


def _clear_default(values: dict[str, Any]) -> None:
    if values.get("is_default"):
        PriorityClass.objects.filter(is_default=True).update(
            is_default=False, version=F("version") + 1
        )


def _row(pk: int, expected_version: int | None) -> PriorityClass:
    row = PriorityClass.objects.filter(pk=pk).first()
    if row is None:
        raise NotFoundError(sentence("no-such-class"), field="id", value=pk)
    require_version(row.version, expected_version, kind=KIND)
    return row


def _needs_default(row: PriorityClass) -> ConflictError:
    return ConflictError(
        sentence("default-class-needed", name=row.name),
        field="is_default",
        value=row.name,
        remedy=sentence("choose-default-first"),
    )


def _conflict(name: str, but: int = 0) -> DuplicateError:
    """Return the error for a name or default that another class than ``but`` already has."""
    if PriorityClass.objects.filter(name=name).exclude(pk=but).exists():
        return DuplicateError(
            sentence("class-exists", name=name),
            field="name",
            value=name,
            remedy=sentence("choose-another-name"),
        )
    return DuplicateError(
        sentence("default-raced"),
        field="is_default",
        value=name,
        remedy=sentence("retry"),
    )


def _faults(values: dict[str, Any]) -> list[FieldError]:
    faults = []
    if "name" in values and not (
        isinstance(values["name"], str) and _NAME.fullmatch(values["name"])
    ):
        faults.append(_fault("name", values["name"], sentence("use-class-name")))
    if "value" in values and not _is_priority(values["value"]):
        remedy = sentence("use-class-priority", least=LOWEST, most=HIGHEST)
        faults.append(_fault("value", values["value"], remedy))
    if "is_default" in values and not isinstance(values["is_default"], bool):
        faults.append(_fault("is_default", values["is_default"], sentence("use-boolean")))
    if "note" in values:
        faults += text_errors(values["note"], field="note", longest=200)
    return faults


def _is_priority(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and LOWEST <= value <= HIGHEST


def _fault(field: str, value: object, remedy: str) -> FieldError:
    return FieldError(
        field=field,
        value=value,
        message=sentence("not-field-of-class", field=plain(field.replace("_", " "))),
        remedy=remedy,
    )
