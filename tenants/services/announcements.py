"""Announcements: created, changed and withdrawn by cluster admins."""

from datetime import datetime
from typing import Any, Final

from django.core.cache import cache
from django.db import transaction

from tenants.audit import record
from tenants.edits import given, require_version, update_row
from tenants.errors import FieldError, InvalidError, NotFoundError
from tenants.messages import sentence
from tenants.models import Announcement, AnnouncementDismissal
from tenants.models.announcements import LONGEST_TEXT, Severity
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.messages import plain

KIND: Final = "announcement"
CACHE_KEY: Final = "tessera:announcements"
_WHAT: Final = "announcements"


def create_announcement(
    *,
    viewer: Viewer,
    text: str,
    severity: str = Severity.INFO,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    now: datetime,
) -> Announcement:
    """Create an announcement.

    Args:
        viewer: a cluster admin.
        text: plain text; addresses in it become links.
        severity: ``info``, ``warning`` or ``critical``.
        starts_at: start of the display; None for now.
        ends_at: end of the display; None until it is deleted.
        now: current time.

    Raises:
        ForbiddenError: the viewer is not a cluster admin.
        InvalidError: invalid values, all of them listed.
    """
    viewer.require(Permission.ANNOUNCE, what=_WHAT)
    values = {
        "text": text.strip() if isinstance(text, str) else text,
        "severity": severity,
        "starts_at": starts_at or now,
        "ends_at": ends_at,
    }
    InvalidError.raise_if(_faults(values))
    with transaction.atomic():
        row = Announcement.objects.create(**values, created_at=now, created_by_id=viewer.user_id)
        record(actor=viewer, action="announcement.create", obj=row, after=values)
        _forget()
    return row


def update_announcement(
    *,
    viewer: Viewer,
    announcement_id: int,
    expected_version: int | None = None,
    **values: Any,
) -> Announcement:
    """Change an announcement; users who dismissed it see it again.

    Args:
        viewer: a cluster admin.
        announcement_id: key of the announcement.
        expected_version: the version the editor saw; None means the one just read.
        **values: the changed ones of ``text``, ``severity``, ``starts_at`` and ``ends_at``.

    Raises:
        NotFoundError: unknown announcement.
        InvalidError: invalid values, all of them listed.
        StaleEditError: another user edited it since ``expected_version``.
    """
    viewer.require(Permission.ANNOUNCE, what=_WHAT)
    wanted = given(**values)
    if isinstance(wanted.get("text"), str):
        wanted["text"] = wanted["text"].strip()
    with transaction.atomic():
        row = _row(announcement_id)
        require_version(row.version, expected_version, kind=KIND)
        there = {key: getattr(row, key) for key in ("text", "severity", "starts_at", "ends_at")}
        InvalidError.raise_if(_faults({**there, **wanted}))
        has_changed = update_row(
            Announcement.objects.all(),
            row,
            kind=KIND,
            expected_version=expected_version,
            read_version=row.version,
            values=wanted,
            viewer=viewer,
            action="announcement.update",
        )
        if has_changed:
            _forget()
    return row


@transaction.atomic
def delete_announcement(
    *, viewer: Viewer, announcement_id: int, expected_version: int | None = None
) -> None:
    """Withdraw an announcement.

    Raises:
        NotFoundError: unknown announcement.
        StaleEditError: another user edited it since ``expected_version``.
    """
    viewer.require(Permission.ANNOUNCE, what=_WHAT)
    row = _row(announcement_id)
    require_version(row.version, expected_version, kind=KIND)
    before = {"text": row.text, "severity": row.severity}
    record(actor=viewer, action="announcement.delete", obj=row, before=before)
    row.delete()
    _forget()


def dismiss_announcement(*, viewer: Viewer, announcement_id: int) -> None:
    """Hide an announcement from this person until it is changed; idempotent.

    Raises:
        NotFoundError: unknown announcement.
    """
    row = _row(announcement_id)
    if viewer.user_id is not None:
        AnnouncementDismissal.objects.bulk_create(
            [AnnouncementDismissal(announcement=row, user_id=viewer.user_id, version=row.version)],
            ignore_conflicts=True,
        )


def _forget() -> None:
    """Drop the cache of this process; other processes read again within seconds."""
    cache.delete(CACHE_KEY)
    transaction.on_commit(lambda: cache.delete(CACHE_KEY))


def _row(pk: int) -> Announcement:
    row = Announcement.objects.filter(pk=pk).first()
    if row is None:
        raise NotFoundError(sentence("no-such-announcement"), field="id", value=pk)
    return row


def _faults(values: dict[str, Any]) -> list[FieldError]:
    faults = []
    text = values["text"]
    if not (isinstance(text, str) and 0 < len(text) <= LONGEST_TEXT and _is_text(text)):
        faults.append(_fault("text", text, sentence("write-characters", most=LONGEST_TEXT)))
    if values["severity"] not in Severity.values:
        remedy = sentence("levels-to-use", names=", ".join(Severity.values))
        faults.append(_fault("severity", values["severity"], remedy))
    starts_at, ends_at = values["starts_at"], values["ends_at"]
    if not _is_moment(starts_at):
        faults.append(_fault("starts_at", starts_at, sentence("give-instant")))
    elif ends_at is not None and not (_is_moment(ends_at) and ends_at > starts_at):
        faults.append(_fault("ends_at", ends_at, sentence("give-later-end")))
    return faults


def _is_moment(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_text(text: str) -> bool:
    return all(character.isprintable() or character in "\r\n\t" for character in text)


def _fault(field: str, value: object, remedy: str) -> FieldError:
    name = field.replace("_", " ").removesuffix(" at")
    return FieldError(
        field=field,
        value=value,
        message=sentence("not-field-of-announcement", name=plain(name)),
        remedy=remedy,
    )
