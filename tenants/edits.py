"""Edits of rows with a ``version``: the second of two concurrent editors is refused."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from django.db import models
from django.db.models import F

from tenants.audit import changed, record
from tenants.errors import StaleEditError
from tenants.viewers import Viewer


class Unchanged(Enum):
    """The type of ``UNCHANGED``: an argument that leaves its field as it is."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


def given(**values: object) -> dict[str, Any]:
    """Return the keyword arguments that the caller passed explicitly."""
    return {key: value for key, value in values.items() if not isinstance(value, Unchanged)}


def require_version(version: int, expected_version: int | None, *, kind: str) -> None:
    """Refuse an edit of a row that has changed since the editor saw it.

    Raises:
        StaleEditError: ``version`` is not the expected one; None expects none.
    """
    if expected_version not in (None, version):
        raise StaleEditError.of(kind, expected_version)


def compare_and_set(
    rows: "models.QuerySet[Any]",
    *,
    pk: int,
    kind: str,
    expected_version: int | None,
    read_version: int,
    values: Mapping[str, object],
) -> None:
    """Write ``values`` and the next version unless the row changed since it was read.

    Args:
        rows: all rows of the kind (scoped where the model demands it).
        pk: primary key of the row.
        kind: display name of the kind of row, for the error.
        expected_version: version that the editor saw; None means ``read_version``.
        read_version: the version just read.
        values: the columns to write.

    Raises:
        StaleEditError: another edit changed the row; nothing is written.
    """
    seen = read_version if expected_version is None else expected_version
    if not rows.filter(pk=pk, version=seen).update(**values, version=F("version") + 1):
        raise StaleEditError.of(kind, expected_version)


def update_row(
    rows: "models.QuerySet[Any]",
    row: models.Model,
    *,
    kind: str,
    expected_version: int | None,
    read_version: int,
    values: Mapping[str, object],
    viewer: Viewer,
    action: str,
    tenant: int | None = None,
    shown: Callable[[Mapping[str, object]], Mapping[str, object]] = dict,
) -> bool:
    """Write those ``values`` that differ from the row, with an audit entry; refresh the row.

    Args:
        rows: all rows of the kind (scoped where the model demands it).
        row: the row as it was read in this transaction.
        kind: display name of the kind of row, for the error.
        expected_version: version that the editor saw; None means ``read_version``.
        read_version: version of the row.
        values: new values by column.
        viewer: the editor.
        action: action of the audit entry, such as ``webhook.update``.
        tenant: its leads may read the audit entry; None for cluster admins only.
        shown: turns columns into values of the audit entry.

    Returns:
        Whether a value differed. If none did, nothing is written.

    Raises:
        StaleEditError: another edit changed the row; nothing is written.
    """
    before, after = changed({key: getattr(row, key) for key in values}, values)
    if not after:
        return False
    compare_and_set(
        rows,
        pk=row.pk,
        kind=kind,
        expected_version=expected_version,
        read_version=read_version,
        values=after,
    )
    row.refresh_from_db()
    record(
        actor=viewer,
        action=action,
        obj=row,
        before=shown(before),
        after=shown(after),
        tenant=tenant,
    )
    return True
