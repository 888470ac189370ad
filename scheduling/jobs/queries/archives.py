"""Uploaded source archives for pages and REST."""

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from scheduling.common.paging import DEFAULT_ROWS, Page, cut, page_limit, read_cursor
from scheduling.jobs.models import SourceArchive
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRow:
    """A source archive; jobs refer to it by ``sha256``."""

    id: int
    sha256: str
    tenant: str
    owner: str
    name: str
    size: int
    created_at: datetime

    @classmethod
    def of(cls, row: SourceArchive) -> Self:
        return cls(
            id=row.pk,
            sha256=row.sha256,
            tenant=row.tenant.name,
            owner=row.owner.username,
            name=row.name,
            size=row.size,
            created_at=row.created_at,
        )


def page_of_archives(
    viewer: Viewer, *, cursor: str | None = None, limit: int = DEFAULT_ROWS
) -> Page[ArchiveRow]:
    """Return the archives of the viewer's tenants, newest first, in one query."""
    limit, key = page_limit(limit), read_cursor(cursor)
    rows = SourceArchive.objects.visible_to(viewer).select_related("tenant", "owner")
    if key:
        rows = rows.filter(pk__lt=key[0])
    found = [ArchiveRow.of(row) for row in rows.order_by("-pk")[: limit + 1]]
    return cut(found, limit, lambda row: row.id)
