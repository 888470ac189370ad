"""Cache of current announcements: pages without announcements run no query."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from django.core.cache import cache
from django.db.models import Q, QuerySet

from tenants.models import Announcement, AnnouncementDismissal
from tenants.roles import Permission
from tenants.services.announcements import CACHE_KEY
from tenants.viewers import Viewer

KEPT_SECONDS: Final = 10
"""Lifetime of cached announcements; each process shows a new one after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementRow:
    """An announcement.

    Attributes:
        id: key of the row.
        severity: ``info``, ``warning`` or ``critical``.
        ends_at: end of the display; None until it is deleted.
        by: author; empty if deleted.
    """

    id: int
    text: str
    severity: str
    starts_at: datetime
    ends_at: datetime | None
    created_at: datetime
    by: str
    version: int

    def is_shown(self, now: datetime) -> bool:
        """Return whether the announcement is shown at this time."""
        return self.starts_at <= now and (self.ends_at is None or now < self.ends_at)

    @classmethod
    def of(cls, row: Announcement) -> Self:
        """Copy the displayed fields."""
        return cls(
            id=row.pk,
            text=row.text,
            severity=row.severity,
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            created_at=row.created_at,
            by=row.created_by.username if row.created_by else "",
            version=row.version,
        )


def announcements_now(viewer: Viewer, *, now: datetime) -> tuple[AnnouncementRow, ...]:
    """Return the announcements at ``now`` that this person has not dismissed, newest first."""
    shown = [row for row in _standing(now) if row.is_shown(now)]
    if not shown or viewer.user_id is None:
        return tuple(shown)
    read = AnnouncementDismissal.objects.filter(
        user=viewer.user_id, announcement__in=[row.id for row in shown]
    )
    known = set(read.values_list("announcement_id", "version"))
    return tuple(row for row in shown if (row.id, row.version) not in known)


def announcements_for(viewer: Viewer, *, now: datetime) -> tuple[AnnouncementRow, ...]:
    """Return all announcements for editors, and the current ones for other users."""
    rows = tuple(AnnouncementRow.of(row) for row in _rows())
    if viewer.can(Permission.ANNOUNCE):
        return rows
    return tuple(row for row in rows if row.is_shown(now))


def _standing(now: datetime) -> tuple[AnnouncementRow, ...]:
    """Return announcements that have not ended."""
    found: tuple[AnnouncementRow, ...] | None = cache.get(CACHE_KEY)
    if found is None:
        rows = _rows().filter(Q(ends_at=None) | Q(ends_at__gt=now))
        found = tuple(AnnouncementRow.of(row) for row in rows)
        cache.set(CACHE_KEY, found, KEPT_SECONDS)
    return found


def _rows() -> QuerySet[Announcement]:
    return Announcement.objects.select_related("created_by")
