"""Compare-and-set on rows with a ``version``: the second of two concurrent editors is refused."""

from typing import TypeVar

from django.db import models
from django.db.models import F

from tenants.errors import StaleEditError
from tenants.tenancy import TenantScopedQuerySet

Row = TypeVar("Row", bound=models.Model)


def compare_and_set(
    rows: TenantScopedQuerySet[Row],
    row: Row,
    *,
    kind: str,
    expected_version: int | None,
    read_version: int,
    values: dict[str, object],
) -> None:
    """Write ``values`` and the next version if the row is unchanged since.

    Args:
        rows: the scoped query set of the row's model.
        row: the row as it was read in this transaction.
        kind: the kind of row in the error.
        expected_version: the version the editor saw; None means the one just read.
        read_version: the version just read.
        values: the columns to write.

    Raises:
        StaleEditError: another writer changed the row; nothing is written.
    """
    seen = read_version if expected_version is None else expected_version
    written = rows.filter(pk=row.pk, version=seen).update(**values, version=F("version") + 1)
    if not written:
        raise StaleEditError.of(kind, expected_version)
