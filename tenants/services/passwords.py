"""Passwords: changed with the current password, or set with a one-time link."""

import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from tenants.audit import Actor, AuditChange, record, record_many
from tenants.clock import database_now
from tenants.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from tenants.messages import sentence
from tenants.models import ApiToken, PasswordLink, User
from tenants.passwords import password_errors
from tenants.roles import Permission
from tenants.viewers import Viewer

LINK_LIFE: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedLink:
    """A new one-time link; show it once.

    Attributes:
        username: the user of the password.
        secret: last part of its address, stored nowhere, omitted from ``repr``.
        expires_at: the link is not valid from then on.
    """

    username: str
    secret: str = field(repr=False)
    expires_at: datetime


@transaction.atomic
def set_password(
    *,
    viewer: Viewer,
    user_id: int,
    password: str,
    current_password: str | None,
    revoke_tokens: bool = False,
) -> None:
    """Change the viewer's own password. All sessions of the person end.

    Args:
        viewer: the person, signed in by session or password.
        user_id: the person whose password is set.
        password: the new one.
        current_password: the current one.
        revoke_tokens: revoke all API tokens of the person as well.

    Raises:
        ForbiddenError: the caller uses a token, or it is another person's password.
        InvalidError: the current password is wrong, or the new one is too weak.
    """
    if viewer.scopes is not None:
        raise ForbiddenError(
            sentence("token-cannot-change-password"),
            remedy=sentence("sign-in-to-change"),
        )
    if viewer.user_id != user_id:
        viewer.require(Permission.MANAGE_USERS, what="the user")
        raise ForbiddenError(
            sentence("only-user-sets-password"),
            field="user",
            value=user_id,
            remedy=sentence("create-password-link-user"),
        )
    user = User.objects.get(pk=user_id)
    if not user.check_password(current_password or ""):
        raise InvalidError(
            sentence("current-password-not-right"),
            field="current_password",
            remedy=sentence("enter-password-again"),
        )
    _store(user, password, actor=Actor.of(viewer), by="password", revoke_tokens=revoke_tokens)


@transaction.atomic
def issue_password_link(*, viewer: Viewer, username: str, now: datetime) -> IssuedLink:
    """Create the link with which a person chooses a password; replaces an earlier one.

    Raises:
        ForbiddenError: the caller uses a token, is not a cluster admin, or is that person.
        NotFoundError: unknown user.
        ConflictError: the user is deactivated.
    """
    if viewer.scopes is not None:
        raise ForbiddenError(
            sentence("token-cannot-create-link"),
            remedy=sentence("sign-in-as-admin"),
        )
    viewer.require(Permission.MANAGE_USERS, what="the user")
    user = User.objects.filter(username__iexact=username).first()
    if user is None:
        raise NotFoundError(sentence("no-such-user"), field="username", value=username)
    if viewer.user_id == user.pk:
        raise ForbiddenError(
            sentence("no-link-for-yourself"),
            remedy=sentence("use-own-password"),
        )
    if not user.is_active:
        raise ConflictError(
            sentence("deactivated", username=user.username),
            field="username",
            value=user.username,
            remedy=sentence("activate-account-first"),
        )
    secret = secrets.token_urlsafe(32)
    expires_at = now + LINK_LIFE
    PasswordLink.objects.filter(user=user).delete()
    PasswordLink.objects.create(
        user=user, digest=_digest(secret), created_at=now, expires_at=expires_at
    )
    record(actor=viewer, action="user.password_link", obj=user, after={"expires_at": expires_at})
    return IssuedLink(username=user.username, secret=secret, expires_at=expires_at)


def user_of_password_link(secret: str, now: datetime) -> User:
    """Return the user whose password a link sets.

    Raises:
        NotFoundError: the link was used or replaced, has expired, or never existed.
    """
    return _live_link(secret, now).user


@transaction.atomic
def use_password_link(
    *, secret: str, password: str, revoke_tokens: bool = False, now: datetime
) -> User:
    """Set the password of the link's owner and delete the link; all their sessions end.

    Raises:
        NotFoundError: as ``user_of_password_link``, also if another request was faster.
        InvalidError: the password is too weak; the link stays valid.
    """
    link = _live_link(secret, now)
    user = link.user
    if not PasswordLink.objects.filter(pk=link.pk).delete()[0]:
        raise _no_link()
    actor = Actor(user_id=user.pk, name=user.username)
    _store(user, password, actor=actor, by="link", revoke_tokens=revoke_tokens)
    return user


def forget_password_links(*, now: datetime) -> int:
    """Delete expired links; return their number."""
    return PasswordLink.objects.filter(expires_at__lte=now).delete()[0]


def _store(user: User, password: str, *, actor: Actor, by: str, revoke_tokens: bool) -> None:
    InvalidError.raise_if(password_errors(password, user))
    user.set_password(password)
    user.save(update_fields=["password"])
    PasswordLink.objects.filter(user=user).delete()
    record(actor=actor, action="user.set_password", obj=user, after={"by": by})
    if revoke_tokens:
        _revoke_tokens(user, actor)


def _revoke_tokens(user: User, actor: Actor) -> None:
    live = list(ApiToken.objects.filter(user=user, revoked_at=None).order_by("pk"))
    ApiToken.objects.filter(pk__in=[token.pk for token in live]).update(revoked_at=database_now())
    changes = [
        AuditChange(
            action="token.revoke",
            obj=token,
            before={"name": token.name, "prefix": token.prefix, "scopes": token.scopes},
            tenant=token.tenant_id,
        )
        for token in live
    ]
    if changes:
        record_many(actor=actor, changes=changes)


def _live_link(secret: str, now: datetime) -> PasswordLink:
    rows = PasswordLink.objects.select_related("user")
    link = rows.filter(digest=_digest(secret), expires_at__gt=now, user__is_active=True).first()
    if link is None:
        raise _no_link()
    return link


def _no_link() -> NotFoundError:
    return NotFoundError(
        sentence("not-password-link"),
        field="link",
        remedy=sentence("ask-for-new-link"),
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
