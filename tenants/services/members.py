"""Members of tenants: roles, and caps of devices per person.

Only a cluster admin can demote or remove the last lead of a tenant. So a team cannot lock itself
out by mistake, and an admin can help a team whose lead has left.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import F

from tenants.audit import changed, record
from tenants.edits import UNCHANGED, Unchanged, compare_and_set
from tenants.errors import (
    ConflictError,
    DuplicateError,
    FieldError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)
from tenants.messages import sentence
from tenants.models import Membership, Tenant, User
from tenants.roles import Permission, Role
from tenants.viewers import Viewer

MOST_DEVICES: Final = 1_000_000
EMPTY: Final[Mapping[str, object]] = MappingProxyType({})


class LastLeadError(ConflictError):
    """The tenant would be left without a lead."""

    code = "last-lead"
    title = sentence("lead-needed")


@transaction.atomic
def add_member(
    *,
    viewer: Viewer,
    tenant_id: int,
    username: str,
    role: str = Role.MEMBER,
    max_devices: int | None = None,
) -> Membership:
    """Add a person to a tenant.

    Args:
        viewer: a lead of the tenant or a cluster admin.
        tenant_id: the tenant.
        username: the person's name, in any case.
        role: ``viewer``, ``member`` or ``lead``.
        max_devices: cap on devices of this person's jobs; None for no cap.

    Raises:
        NotFoundError, ForbiddenError: the viewer may not manage members there.
        InvalidError: no active user of that name, an unknown role, or a cap below 1.
        DuplicateError: the person is a member already.
    """
    viewer.require(Permission.MANAGE_MEMBERS, tenant_id, what="the members of the tenant")
    tenant = _tenant(tenant_id)
    user = User.objects.filter(username__iexact=username, is_active=True).first()
    errors = [*_role_errors(role), *_cap_errors(max_devices)]
    if user is None:
        errors.append(
            FieldError(
                field="username",
                value=username,
                message=sentence("no-active-user"),
                remedy=sentence("check-user-name"),
            )
        )
    InvalidError.raise_if(errors)
    assert user is not None  # noqa: S101 narrows the type: its absence was raised above
    try:
        with transaction.atomic():
            membership = Membership.objects.create(
                tenant=tenant, user=user, role=Role(role).value, max_devices=max_devices
            )
    except IntegrityError as error:
        raise DuplicateError(
            sentence("member-already", username=user.username, name=tenant.name),
            field="username",
            value=user.username,
            remedy=sentence("change-role-member-instead"),
        ) from error
    _count_edit(tenant, must_be_alone=False)
    after = {"user": user.username, "role": membership.role, "max_devices": max_devices}
    _record(viewer, "member.add", membership, user, after=after)
    return membership


@transaction.atomic
def update_member(
    *,
    viewer: Viewer,
    membership_id: int,
    role: str | Unchanged = UNCHANGED,
    max_devices: int | Unchanged | None = UNCHANGED,
    expected_version: int | None = None,
) -> Membership:
    """Change a member's role, cap, or both in one edit.

    Args:
        viewer: a lead of the tenant or a cluster admin.
        membership_id: the row.
        role: the new role.
        max_devices: the new cap, None for no cap.
        expected_version: the version the editor saw; None for the current one.

    Raises:
        NotFoundError, ForbiddenError: the viewer may not do that there.
        InvalidError: an unknown role, or a cap below 1.
        LastLeadError: the tenant would be left without a lead.
        StaleEditError: another user edited the member since ``expected_version``.
    """
    membership = _membership(viewer, membership_id)
    wanted: dict[str, object] = {}
    errors: list[FieldError] = []
    if not isinstance(role, Unchanged):
        viewer.require(Permission.MANAGE_MEMBERS, membership.tenant_id, what="the member's role")
        errors += _role_errors(role)
        wanted["role"] = str(role)
    if not isinstance(max_devices, Unchanged):
        viewer.require(Permission.SET_CAPS, membership.tenant_id, what="the member's cap")
        errors += _cap_errors(max_devices)
        wanted["max_devices"] = max_devices
    InvalidError.raise_if(errors)
    before, after = changed({key: getattr(membership, key) for key in wanted}, wanted)
    is_losing_lead = membership.role == Role.LEAD and "role" in after
    if is_losing_lead:
        _keep_a_lead(viewer, membership)
    compare_and_set(
        Membership.objects.unscoped(),
        pk=membership.pk,
        kind="member",
        expected_version=expected_version,
        read_version=membership.version,
        values=after,
    )
    if after:
        _count_edit(membership.tenant, must_be_alone=is_losing_lead)
        _record(viewer, "member.update", membership, membership.user, before=before, after=after)
    membership.refresh_from_db()
    return membership


@transaction.atomic
def remove_member(
    *, viewer: Viewer, membership_id: int, expected_version: int | None = None
) -> None:
    """Remove a person from a tenant; their jobs remain, and their tokens lose access.

    In a session, members may always remove themselves.

    Raises:
        NotFoundError, ForbiddenError: the viewer may not manage members there.
        LastLeadError: the tenant would be left without a lead.
        StaleEditError: another user edited the member since ``expected_version``.
    """
    membership = _membership(viewer, membership_id)
    is_leaving = viewer.scopes is None and membership.user_id == viewer.user_id
    if not is_leaving:
        viewer.require(Permission.MANAGE_MEMBERS, membership.tenant_id, what="the member")
    is_losing_lead = membership.role == Role.LEAD
    if is_losing_lead:
        _keep_a_lead(viewer, membership)
    seen = membership.version if expected_version is None else expected_version
    user = membership.user
    deleted, _ = Membership.objects.unscoped().filter(pk=membership_id, version=seen).delete()
    if not deleted:
        raise StaleEditError.of("member", expected_version)
    _count_edit(membership.tenant, must_be_alone=is_losing_lead)
    before = {
        "user": user.username,
        "role": membership.role,
        "max_devices": membership.max_devices,
    }
    _record(viewer, "member.remove", membership, user, before=before)


def _keep_a_lead(viewer: Viewer, leaving: Membership) -> None:
    if viewer.is_cluster_admin:
        return
    leads = Membership.objects.unscoped().filter(
        tenant=leaving.tenant_id, role=Role.LEAD.value, user__is_active=True
    )
    if not leads.exclude(pk=leaving.pk).exists():
        raise LastLeadError(
            sentence("last-lead", username=leaving.user.username, name=leaving.tenant.name),
            field="role",
            value=leaving.role,
            remedy=sentence("choose-lead-first"),
        )


def _count_edit(tenant: Tenant, *, must_be_alone: bool) -> None:
    """Increment the version of the list; of two leads who demote each other, one fails."""
    rows = Tenant.objects.unscoped().filter(pk=tenant.pk)
    if must_be_alone:
        rows = rows.filter(members_version=tenant.members_version)
    if not rows.update(members_version=F("members_version") + 1):
        raise StaleEditError.of("list of members", tenant.members_version)


def _record(
    viewer: Viewer,
    action: str,
    membership: Membership,
    user: User,
    *,
    before: Mapping[str, object] = EMPTY,
    after: Mapping[str, object] = EMPTY,
) -> None:
    record(
        actor=viewer,
        action=action,
        object_type="membership",
        object_id=membership.pk or "",
        object_name=user.username,
        before=before,
        after=after,
        tenant=membership.tenant_id,
    )


def _membership(viewer: Viewer, membership_id: int) -> Membership:
    rows = Membership.objects.visible_to(viewer).select_related("tenant", "user")
    membership = rows.filter(pk=membership_id).first()
    if membership is None:
        raise NotFoundError(sentence("no-member-for-you"), field="member", value=membership_id)
    return membership


def _tenant(tenant_id: int) -> Tenant:
    tenant = Tenant.objects.unscoped().filter(pk=tenant_id).first()
    if tenant is None:
        raise NotFoundError(sentence("no-tenant"), field="tenant", value=tenant_id)
    return tenant


def _role_errors(role: str) -> list[FieldError]:
    known = [known.value for known in Role]
    if role in known:
        return []
    return [
        FieldError(
            field="role",
            value=role,
            message=sentence("no-such-role"),
            remedy=sentence("roles-to-use", names=", ".join(known)),
        )
    ]


def _cap_errors(max_devices: int | None) -> list[FieldError]:
    if max_devices is None or 1 <= max_devices <= MOST_DEVICES:
        return []
    return [
        FieldError(
            field="max_devices",
            value=max_devices,
            message=sentence("cap-too-small"),
            remedy=sentence("give-cap", most=format(MOST_DEVICES, ",")),
        )
    ]
