"""Queries of ``tenants`` for pages and REST; each function takes the viewer."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from django.db.models import Q, QuerySet

from tenants.compiled_sql import CompiledQuery
from tenants.errors import InvalidError, NotFoundError
from tenants.messages import sentence
from tenants.models import (
    ApiToken,
    AuditEntry,
    InboxMessage,
    Membership,
    Snooze,
    Tenant,
    User,
)
from tenants.roles import Permission, Role, Scope
from tenants.viewers import Viewer

MOST_ROWS: Final = 200


def _memberships(user_id: int) -> QuerySet[Any, Any]:
    rows = Membership.objects.unscoped().filter(user_id=user_id)
    # Only whether there is a time of archiving is read.
    return rows.values_list("tenant_id", "role", "tenant__name", "tenant__archived_at")


_MEMBERSHIPS: Final = CompiledQuery(_memberships)


def viewer_of(user: User, token: ApiToken | None = None) -> Viewer:
    """Return the rights of ``user``, read in one query (two for admins).

    Args:
        user: an active, authenticated user.
        token: the token of the request; it can only narrow the rights.
    """
    bound = token.tenant_id if token is not None else None
    rows = _MEMBERSHIPS.rows(user.pk)
    names = {tenant_id: name for tenant_id, _, name, _ in rows}
    archived = {tenant_id for tenant_id, _, _, archived_at in rows if archived_at}
    if user.is_cluster_admin:
        tenants = Tenant.objects.unscoped()
        for tenant_id, name, archived_at in tenants.values_list("id", "name", "archived_at"):
            names[tenant_id] = name
            archived |= {tenant_id} if archived_at else set()
    return Viewer(
        user_id=user.pk,
        username=user.username,
        is_cluster_admin=user.is_cluster_admin,
        roles={tid: Role(role) for tid, role, *_ in rows if bound in (None, tid)},
        tenant_names={tid: name for tid, name in names.items() if bound in (None, tid)},
        archived_ids=frozenset(archived),
        # A scope unknown to this version allows nothing.
        scopes=None if token is None else frozenset(s for s in Scope if s in token.scopes),
        bound_tenant_id=bound,
        token_prefix="" if token is None else token.prefix,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """The public fields of a token: all but its digest.

    Attributes:
        id: key of the row.
        owner: user name.
        name: label of the token.
        prefix: public part of the key.
        scopes: permissions of the token.
        tenant_id: the only visible tenant, or None.
        created_at, expires_at, last_used_at, revoked_at: times; None if not (yet).
    """

    id: int
    owner: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    tenant_id: int | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    def is_live(self, now: datetime) -> bool:
        """Return whether the key is valid."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @classmethod
    def of(cls, token: ApiToken) -> Self:
        """Copy the public fields."""
        return cls(
            id=token.pk,
            owner=token.user.username,
            name=token.name,
            prefix=token.prefix,
            scopes=tuple(token.scopes),
            tenant_id=token.tenant_id,
            created_at=token.created_at,
            expires_at=token.expires_at,
            last_used_at=token.last_used_at,
            revoked_at=token.revoked_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Some audit rows, newest first, and the cursor of the next page (None at the end)."""

    rows: tuple[AuditEntry, ...]
    next_cursor: str | None


def tenants_for(viewer: Viewer, *, with_archived: bool = True) -> QuerySet[Tenant]:
    """Return the tenants that the viewer may see, in order of creation."""
    tenants = Tenant.objects.visible_to(viewer)
    return tenants if with_archived else tenants.filter(archived_at=None)


def tenant_for(viewer: Viewer, tenant: int | str) -> Tenant:
    """Return one tenant by id or name.

    Raises:
        NotFoundError: unknown tenant, or not visible to the viewer.
    """
    wanted = Q(pk=tenant) if isinstance(tenant, int) else Q(name=tenant)
    found = Tenant.objects.visible_to(viewer).filter(wanted).first()
    if found is None:
        raise NotFoundError(sentence("no-tenant-for-you"), field="tenant", value=tenant)
    return found


def members_for(viewer: Viewer, *, tenant_id: int | None = None) -> QuerySet[Membership]:
    """Return members of one tenant, or of all visible tenants, with user and tenant."""
    members = Membership.objects.visible_to(viewer).select_related("user", "tenant")
    if tenant_id is not None:
        members = members.filter(tenant=tenant_id)
    return members.defer("user__password").order_by("tenant__position", "user__username")


def member_for(viewer: Viewer, membership_id: int) -> Membership:
    """Return one member.

    Raises:
        NotFoundError: unknown member, or not visible to the viewer.
    """
    found = members_for(viewer).filter(pk=membership_id).first()
    if found is None:
        raise NotFoundError(sentence("no-member-for-you"), field="member", value=membership_id)
    return found


def users_for(viewer: Viewer) -> QuerySet[User]:
    """Return users that the viewer may see: all for a cluster admin, or of shared tenants."""
    users = User.objects.defer("password").order_by("username")
    if viewer.can(Permission.MANAGE_USERS):
        return users
    shared = Membership.objects.visible_to(viewer).values("user")
    return users.filter(Q(pk__in=shared) | Q(pk=viewer.user_id))


def tokens_for(viewer: Viewer) -> tuple[TokenRow, ...]:
    """Return the viewer's own tokens, newest first; a caller with a token of one tenant gets only
    those.

    Tokens of others are listed by ``tokens_in_tenant`` alone.
    """
    tokens = ApiToken.objects.select_related("user").defer("digest").filter(user=viewer.user_id)
    if viewer.bound_tenant_id is not None:
        tokens = tokens.filter(tenant=viewer.bound_tenant_id)
    return tuple(TokenRow.of(token) for token in tokens)


def tokens_in_tenant(viewer: Viewer, tenant_id: int, *, now: datetime) -> tuple[TokenRow, ...]:
    """Return the members' valid tokens that are limited to this tenant, by owner.

    Tokens with access to further tenants are visible only to their owners.

    Args:
        viewer: may manage the members, and uses a session; callers with a token get only own
            tokens.
        tenant_id: the tenant of the members.
        now: current time.
    """
    if viewer.token_prefix or not viewer.can(Permission.MANAGE_MEMBERS, tenant_id):
        return ()
    tokens = (
        ApiToken.objects.select_related("user")
        .defer("digest")
        .filter(tenant=tenant_id, revoked_at=None, user__memberships__tenant=tenant_id)
        .filter(Q(expires_at=None) | Q(expires_at__gt=now))
        .order_by("user__username", "-created_at", "-id")
    )
    return tuple(TokenRow.of(token) for token in tokens[:MOST_ROWS])


def audit_page(
    viewer: Viewer,
    *,
    cursor: str | None = None,
    limit: int = 50,
    tenant_id: int | None = None,
    actor: str = "",
    action: str = "",
    object_type: str = "",
    object_id: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> AuditPage:
    """Return a page of the audit, newest first; rows without tenant only for cluster admins.

    Args:
        viewer: leads see their tenants, cluster admins everything.
        cursor: ``next_cursor`` of the page before; None for the newest.
        limit: rows of a page, at most 200.
        tenant_id: only rows of this tenant.
        actor: only rows of the actor of this name.
        action: only this action, or all of one object when it ends in a dot (``member.``).
        object_type: only this kind of object.
        object_id: only the object of this key.
        since: only rows from this time on.
        until: only rows before this time.

    Raises:
        InvalidError: the cursor is not valid.
    """
    rows = AuditEntry.objects.visible_to(viewer).select_related("tenant").order_by("-pk")
    if cursor is not None:
        rows = rows.filter(pk__lt=_key_of(cursor))
    exact = {
        "tenant": tenant_id,
        "actor_name": actor,
        "object_type": object_type,
        "object_id": object_id,
    }
    rows = rows.filter(**{name: value for name, value in exact.items() if value not in (None, "")})
    if since is not None:
        rows = rows.filter(at__gte=since)
    if until is not None:
        rows = rows.filter(at__lt=until)
    if action:
        rows = rows.filter(**{"action__startswith" if action.endswith(".") else "action": action})
    size = max(1, min(limit, MOST_ROWS))
    found = list(rows[: size + 1])
    is_more = len(found) > size
    return AuditPage(
        rows=tuple(found[:size]), next_cursor=str(found[size - 1].pk) if is_more else None
    )


def _key_of(cursor: str) -> int:
    if cursor.isascii() and cursor.isdigit() and len(cursor) <= 18:
        return int(cursor)
    raise InvalidError(
        sentence("not-cursor"),
        field="cursor",
        value=cursor,
        remedy=sentence("use-next-cursor"),
    )


def inbox_for(viewer: Viewer) -> "QuerySet[InboxMessage]":
    """Return the messages of the viewer, newest first, of tenants that the viewer may still see.

    A token that is bound to a tenant gets messages of this tenant only.
    """
    mine = InboxMessage.objects.unscoped().filter(user=viewer.user_id or 0)
    tenant_ids = viewer.tenant_ids(Permission.VIEW_JOBS)
    if tenant_ids is None:
        return mine.order_by("-id")
    seen = Q(tenant__in=tenant_ids)
    if viewer.bound_tenant_id is None and viewer.is_cluster_admin:
        seen |= Q(tenant=None)
    return mine.filter(seen).order_by("-id")


def snoozed_keys(viewer: Viewer, *, now: datetime) -> frozenset[str]:
    """Return the keys of the problems that the viewer has snoozed."""
    rows = Snooze.objects.filter(user=viewer.user_id or 0, until__gt=now)
    return frozenset(rows.values_list("key", flat=True))


def own_device_cap(viewer: Viewer) -> int | None:
    """Return the sum of the viewer's device limits in their tenants; None if one has no limit."""
    mine = Membership.objects.unscoped().filter(user=viewer.user_id or 0)
    caps = list(mine.filter(tenant__archived_at=None).values_list("max_devices", flat=True))
    known = [cap for cap in caps if cap is not None]
    return sum(known) if caps and len(known) == len(caps) else None
