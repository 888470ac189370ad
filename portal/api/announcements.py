"""Announcements: texts of cluster admins above all pages."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, read_body, read_changes
from portal.api.queries import instant
from portal.api.schema import IDEMPOTENCY_KEY, IF_MATCH, PAGE, Op
from portal.api.views import (
    ApiViewSet,
    Nothing,
    WithdrawnError,
    expected_version,
    make_with_key,
    versioned,
)
from tenants.announcements import AnnouncementRow, announcements_for
from tenants.clock import database_now
from tenants.errors import NotFoundError
from tenants.models import Announcement
from tenants.services import (
    FormSentError,
    create_announcement,
    delete_announcement,
    dismiss_announcement,
    update_announcement,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementIn:
    """An announcement to all users. Severity: info, warning or critical; times with offset."""

    text: str
    severity: str = "info"
    starts_at: str | None = None
    ends_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementPatch:
    """Changes to an announcement; users who dismissed it see it again."""

    text: str = ""
    severity: str = ""
    starts_at: str = ""
    ends_at: str | None = None


class AnnouncementOut(TypedDict):
    """An announcement."""

    id: int
    text: str
    severity: str
    starts_at: datetime
    ends_at: datetime | None
    created_at: datetime
    by: str
    version: int


class AnnouncementViewSet(ApiViewSet):
    """Announcements; admins also see the past and future ones."""

    collection = "announcements"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=AnnouncementOut, pages=True),
        "create": Op(
            takes=(IDEMPOTENCY_KEY,),
            body=AnnouncementIn,
            answer=AnnouncementOut,
            status=201,
            also={200: AnnouncementOut},
        ),
        "retrieve": Op(answer=AnnouncementOut),
        "partial_update": Op(takes=(IF_MATCH,), body=AnnouncementPatch, answer=AnnouncementOut),
        "destroy": Op(takes=(IF_MATCH,), status=204),
        "dismiss": Op(body=Nothing, status=204),
    }

    def list(self, request: Request) -> Response:
        """List current announcements; cluster admins get all announcements."""
        rows = announcements_for(self.viewer, now=database_now())
        return self.page(self.cut(rows, lambda row: row.id), announcement_out)

    def create(self, request: Request) -> Response:
        """Create an announcement.

        A repeated `Idempotency-Key` returns the first announcement with 200, or 409 (`withdrawn`)
        if it has been withdrawn.
        """
        wanted = read_body(AnnouncementIn, request.data)
        create = partial(
            create_announcement,
            viewer=self.viewer,
            text=wanted.text,
            severity=wanted.severity,
            starts_at=instant("starts_at", wanted.starts_at),
            ends_at=instant("ends_at", wanted.ends_at),
            now=database_now(),
        )
        try:
            row = make_with_key(request, create, viewer=self.viewer, made_key=lambda made: made.pk)
        except FormSentError as earlier:
            made = earlier.made or 0
            if not Announcement.objects.filter(pk=made).exists():
                raise WithdrawnError.of("announcement", made) from None
            return self.retrieve(request, made)
        return _answer(row, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get an announcement."""
        for row in announcements_for(self.viewer, now=database_now()):
            if row.id == pk:
                return versioned(announcement_out(row), row.version)
        raise NotFoundError("Announcement not found.", field="id", value=pk)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update an announcement."""
        given: dict[str, Any] = read_changes(AnnouncementPatch, request.data)
        for name in ("starts_at", "ends_at"):
            if name in given:
                given[name] = instant(name, given[name])
        row = update_announcement(
            viewer=self.viewer,
            announcement_id=pk,
            expected_version=expected_version(request),
            **given,
        )
        return _answer(row)

    def destroy(self, request: Request, pk: int) -> Response:
        """Withdraw an announcement."""
        delete_announcement(
            viewer=self.viewer, announcement_id=pk, expected_version=expected_version(request)
        )
        return Response(status=204)

    @action(detail=True, methods=["post"])
    def dismiss(self, request: Request, pk: int) -> Response:
        """Hide an announcement from yourself until it changes."""
        read_body(Nothing, request.data)
        dismiss_announcement(viewer=self.viewer, announcement_id=pk)
        return Response(status=204)


announcement_out = Body(AnnouncementOut, AnnouncementRow)


def _answer(row: Announcement, *, status: int = 200) -> Response:
    return versioned(announcement_out(AnnouncementRow.of(row)), row.version, status=status)
