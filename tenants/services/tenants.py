"""Services for tenants: create, edit and archive; the short name never changes."""

import re
from datetime import datetime
from typing import Final

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Max

from tenants.audit import changed, record
from tenants.edits import compare_and_set
from tenants.errors import ConflictError, DuplicateError, FieldError, InvalidError, NotFoundError
from tenants.messages import sentence
from tenants.models import Tenant, UidFloor
from tenants.roles import Permission
from tenants.viewers import Viewer

NAME_PATTERN: Final = r"[a-z][a-z0-9-]{0,38}[a-z0-9]|[a-z]"
UNKNOWN_UIDS: Final = 100
"""Skipped Unix user ids if the replaced database cannot be read."""
_TRIES: Final = 5


def create_tenant(*, viewer: Viewer, name: str, display_name: str = "", note: str = "") -> Tenant:
    """Create a tenant; it gets the next free position, which determines its colour.

    Args:
        viewer: a cluster admin.
        name: short name for commands and addresses; never changes.
        display_name: name for people; by default the short name.
        note: free text.

    Raises:
        ForbiddenError: the viewer is not a cluster admin.
        ConflictError: the range of Unix user ids is used up.
        InvalidError: invalid fields, all of them listed.
        DuplicateError: the name is taken.
    """
    viewer.require(Permission.MANAGE_TENANTS, what="tenants")
    display_name = display_name.strip() or name
    InvalidError.raise_if([*_name_errors(name), *_word_errors(display_name, note)])
    for _ in range(_TRIES):
        try:
            return _insert(viewer, name=name, display_name=display_name, note=note)
        except IntegrityError:
            if Tenant.objects.unscoped().filter(name=name).exists():
                raise DuplicateError(
                    sentence("tenant-named-exists", name=name),
                    field="name",
                    value=name,
                    remedy=sentence("choose-another-tenant-name"),
                ) from None
    raise ConflictError(sentence("tenants-raced"), remedy=sentence("retry-now"))


@transaction.atomic
def update_tenant(
    *,
    viewer: Viewer,
    tenant_id: int,
    display_name: str | None = None,
    note: str | None = None,
    expected_version: int | None = None,
) -> Tenant:
    """Edit the texts of a tenant; None leaves a field unchanged.

    Raises:
        NotFoundError, ForbiddenError: the viewer is not a cluster admin.
        InvalidError: a text is empty or too long.
        StaleEditError: another user edited it since ``expected_version``.
    """
    tenant = _tenant(viewer, tenant_id)
    given = {"display_name": display_name, "note": note}
    wanted: dict[str, object] = {
        key: value.strip() for key, value in given.items() if value is not None
    }
    InvalidError.raise_if(
        _word_errors(
            str(wanted.get("display_name", tenant.display_name)),
            str(wanted.get("note", tenant.note)),
        )
    )
    return _write(viewer, tenant, "tenant.update", wanted, expected_version)


@transaction.atomic
def archive_tenant(
    *, viewer: Viewer, tenant_id: int, now: datetime, expected_version: int | None = None
) -> Tenant:
    """Archive a tenant: its history remains, it accepts no new work or members.

    Running jobs continue; stopping them, and releasing its cells, remains possible.

    Raises:
        ConflictError: the tenant is archived already.
        StaleEditError: another user edited it since ``expected_version``.
    """
    tenant = _tenant(viewer, tenant_id)
    if tenant.is_archived:
        raise ConflictError(
            sentence("archived-already", name=tenant.name), field="tenant", value=tenant.name
        )
    archived_at = max(now, tenant.created_at)
    return _write(viewer, tenant, "tenant.archive", {"archived_at": archived_at}, expected_version)


@transaction.atomic
def restore_tenant(
    *, viewer: Viewer, tenant_id: int, expected_version: int | None = None
) -> Tenant:
    """Restore an archived tenant.

    Raises:
        ConflictError: the tenant is not archived.
        StaleEditError: another user edited it since ``expected_version``.
    """
    tenant = _tenant(viewer, tenant_id)
    if not tenant.is_archived:
        raise ConflictError(
            sentence("not-archived", name=tenant.name), field="tenant", value=tenant.name
        )
    return _write(viewer, tenant, "tenant.restore", {"archived_at": None}, expected_version)


@transaction.atomic
def _insert(viewer: Viewer, *, name: str, display_name: str, note: str) -> Tenant:
    newest = Tenant.objects.unscoped().aggregate(last=Max("position"))
    tenant = Tenant.objects.create(
        name=name,
        display_name=display_name,
        note=note,
        position=(newest["last"] or 0) + 1,
        uid=_next_uid(),
    )
    after = {"name": name, "display_name": display_name, "note": note, "uid": tenant.uid}
    record(actor=viewer, action="tenant.create", obj=tenant, after=after, tenant=tenant)
    return tenant


def newest_uid() -> int:
    """Return the highest Unix user id that a tenant may have had; 0 if none."""
    of_tenants = Tenant.objects.unscoped().aggregate(uid=Max("uid"))["uid"] or 0
    floor = UidFloor.objects.values_list("uid", flat=True).first() or 0
    return max(of_tenants, floor)


def skip_uids(given: int | None) -> int:
    """Skip the user ids of tenants that are missing in a restored database.

    Files of those tenants may still be on nodes.

    Args:
        given: ``newest_uid`` of the database that was replaced; None if unreadable.

    Returns:
        The id above which new tenants get theirs. If the replaced database is not newer than the
        restored one, its ids are unknown, and ``UNKNOWN_UIDS`` are skipped.
    """
    first, _ = settings.TENANT_UIDS
    known = max(newest_uid(), first - 1)
    upto = known + UNKNOWN_UIDS if given is None or given < known else given
    UidFloor.objects.update_or_create(id=1, defaults={"uid": upto})
    return upto


def _next_uid() -> int:
    """Return the first user id of the configured range that no tenant has had.

    Raises:
        ConflictError: the range is used up.
    """
    first, last = settings.TENANT_UIDS
    uid = max(first, newest_uid() + 1)
    if uid > last:
        raise ConflictError(
            sentence("uids-used-up", first=str(first), last=str(last)),
            field="uid",
            value=uid,
            remedy=sentence("larger-uid-range"),
        )
    return uid


def _write(
    viewer: Viewer,
    tenant: Tenant,
    action: str,
    wanted: dict[str, object],
    expected_version: int | None,
) -> Tenant:
    before, after = changed({key: getattr(tenant, key) for key in wanted}, wanted)
    compare_and_set(
        Tenant.objects.unscoped(),
        pk=tenant.pk,
        kind="tenant",
        expected_version=expected_version,
        read_version=tenant.version,
        values=after,
    )
    if after:
        record(actor=viewer, action=action, obj=tenant, before=before, after=after, tenant=tenant)
    tenant.refresh_from_db()
    return tenant


def _tenant(viewer: Viewer, tenant_id: int) -> Tenant:
    viewer.require(Permission.MANAGE_TENANTS, tenant_id, what="the tenant")
    tenant = Tenant.objects.unscoped().filter(pk=tenant_id).first()
    if tenant is None:
        raise NotFoundError(sentence("no-tenant"), field="tenant", value=tenant_id)
    return tenant


def _name_errors(name: str) -> list[FieldError]:
    if re.fullmatch(NAME_PATTERN, name):
        return []
    return [
        FieldError(
            field="name",
            value=name,
            message=sentence("not-tenant-name"),
            remedy=sentence("use-tenant-name"),
        )
    ]


def _word_errors(display_name: str, note: str) -> list[FieldError]:
    errors = []
    if not 1 <= len(display_name) <= 80 or not display_name.isprintable():
        errors.append(
            FieldError(
                field="display_name",
                value=display_name,
                message=sentence("not-display-name"),
                remedy=sentence("use-80-printable-characters"),
            )
        )
    if len(note) > 2000 or "\x00" in note:
        errors.append(
            FieldError(
                field="note",
                value=note,
                message=sentence("not-note"),
                remedy=sentence("use-most-000-characters"),
            )
        )
    return errors
