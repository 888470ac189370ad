"""People: creating users, their preferences, and the rights of cluster admins."""

import re
from zoneinfo import available_timezones

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from tenants.audit import changed, record
from tenants.errors import (
    ConflictError,
    DuplicateError,
    FieldError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from tenants.messages import sentence
from tenants.models import Language, Theme, User
from tenants.models.users import BROWSER_ZONE, USERNAME_PATTERN
from tenants.passwords import password_errors
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.messages import plain


@transaction.atomic
def create_user(
    *,
    viewer: Viewer,
    username: str,
    password: str | None = None,
    email: str = "",
    first_name: str = "",
    last_name: str = "",
    is_cluster_admin: bool = False,
) -> User:
    """Create a user; without a password, the user sets one with a password link.

    Raises:
        ForbiddenError: the viewer is not a cluster admin, or sets a password with a token.
        InvalidError: invalid fields, all of them listed.
        DuplicateError: the name is taken, in any case.
    """
    viewer.require(Permission.MANAGE_USERS, what="users")
    if is_cluster_admin:
        viewer.require(Permission.GRANT_ADMIN, what="cluster admins")
    if password is not None and viewer.scopes is not None:
        # The holder of the token could sign in as that person and grant them any role.
        raise ForbiddenError(
            sentence("token-cannot-set-password"),
            field="password",
            remedy=sentence("omit-password"),
        )
    user = User(username=username, email=email, first_name=first_name, last_name=last_name)
    errors = [*_username_errors(username), *_profile_errors(user)]
    if password is not None:
        errors += password_errors(password, user)
    InvalidError.raise_if(errors)
    user.is_superuser = user.is_staff = is_cluster_admin
    user.set_password(password)
    try:
        with transaction.atomic():
            user.save(force_insert=True)
    except IntegrityError as error:
        raise DuplicateError(
            sentence("user-named-exists", username=username),
            field="username",
            value=username,
            remedy=sentence("choose-another-user-name"),
        ) from error
    after = {"username": username, "email": email, "is_cluster_admin": is_cluster_admin}
    record(actor=viewer, action="user.create", obj=user, after=after)
    return user


@transaction.atomic
def set_preferences(
    *,
    viewer: Viewer,
    theme: str | None = None,
    language: str | None = None,
    time_zone: str | None = None,
) -> User:
    """Set the viewer's preferences; None leaves a preference unchanged.

    Raises:
        InvalidError: unknown value.
    """
    user = _user(viewer.user_id)
    given = {"theme": theme, "language": language, "time_zone": time_zone}
    wanted: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    allowed = {
        "theme": Theme.values,
        "language": Language.values,
        "time_zone": available_timezones() | {"UTC", BROWSER_ZONE},
    }
    InvalidError.raise_if(
        FieldError(
            field=key,
            value=value,
            message=sentence("no-such-name", kind=plain(key.replace("_", " "))),
            remedy=(
                sentence("use-time-zone")
                if key == "time_zone"
                else sentence("roles-to-use", names=", ".join(sorted(allowed[key])))
            ),
        )
        for key, value in wanted.items()
        if value not in allowed[key]
    )
    before, after = changed({key: getattr(user, key) for key in wanted}, wanted)
    if after:
        for key, value in after.items():
            setattr(user, key, value)
        user.save(update_fields=list(after))
        record(actor=viewer, action="user.preferences", obj=user, before=before, after=after)
    return user


@transaction.atomic
def set_email(*, viewer: Viewer, email: str) -> User:
    """Set the viewer's e-mail address; empty for no mail.

    Raises:
        InvalidError: not an e-mail address.
    """
    user = _user(viewer.user_id)
    before = user.email
    user.email = email.strip()
    InvalidError.raise_if(_profile_errors(user))
    if user.email != before:
        user.save(update_fields=["email"])
        record(
            actor=viewer,
            action="user.email",
            obj=user,
            before={"email": before},
            after={"email": user.email},
        )
    return user


@transaction.atomic
def grant_cluster_admin(*, viewer: Viewer, user_id: int) -> User:
    """Grant a person the rights of a cluster admin; tokens cannot do this."""
    return _set_admin(viewer=viewer, user_id=user_id, is_admin=True)


@transaction.atomic
def revoke_cluster_admin(*, viewer: Viewer, user_id: int) -> User:
    """Revoke the rights of a cluster admin; not with a token, and not from the last cluster admin.

    Raises:
        ConflictError: no cluster admin would remain.
    """
    return _set_admin(viewer=viewer, user_id=user_id, is_admin=False)


@transaction.atomic
def set_user_active(*, viewer: Viewer, user_id: int, is_active: bool) -> User:
    """Activate or deactivate a user. Users are never deleted: the audit log refers to them.

    Raises:
        ConflictError: the last cluster admin cannot be deactivated.
    """
    viewer.require(Permission.MANAGE_USERS, what="users")
    user = _user(user_id)
    if user.is_superuser:
        viewer.require(Permission.GRANT_ADMIN, what="cluster admins")
    if user.is_active == is_active:
        return user
    if not is_active:
        _keep_an_admin(user)
    user.is_active = is_active
    user.save(update_fields=["is_active"])
    record(
        actor=viewer,
        action="user.activate" if is_active else "user.deactivate",
        obj=user,
        before={"is_active": not is_active},
        after={"is_active": is_active},
    )
    return user


def _set_admin(*, viewer: Viewer, user_id: int, is_admin: bool) -> User:
    viewer.require(Permission.GRANT_ADMIN, what="cluster admins")
    user = _user(user_id)
    if user.is_superuser == is_admin:
        return user
    if not is_admin:
        _keep_an_admin(user)
    user.is_superuser = user.is_staff = is_admin
    user.save(update_fields=["is_superuser", "is_staff"])
    record(
        actor=viewer,
        action="user.grant_admin" if is_admin else "user.revoke_admin",
        obj=user,
        before={"is_cluster_admin": not is_admin},
        after={"is_cluster_admin": is_admin},
    )
    return user


def _keep_an_admin(leaving: User) -> None:
    if not leaving.is_cluster_admin:
        return
    # If two admins revoke each other concurrently, the locks let the second one see the first
    # change.
    admins = User.objects.select_for_update(no_key=True).filter(is_superuser=True, is_active=True)
    if not [admin for admin in admins.order_by("pk") if admin.pk != leaving.pk]:
        raise ConflictError(
            sentence("last-cluster-admin", username=leaving.username),
            field="user",
            value=leaving.username,
            remedy=sentence("make-other-admin"),
        )


def _user(user_id: int | None) -> User:
    user = None if user_id is None else User.objects.filter(pk=user_id).first()
    if user is None:
        raise NotFoundError(sentence("no-such-user"), field="user", value=user_id)
    return user


def _username_errors(username: str) -> list[FieldError]:
    if re.fullmatch(USERNAME_PATTERN, username):
        return []
    return [
        FieldError(
            field="username",
            value=username,
            message=sentence("not-user-name"),
            remedy=sentence("use-user-name"),
        )
    ]


def _profile_errors(user: User) -> list[FieldError]:
    errors = [
        FieldError(
            field=name,
            value=getattr(user, name),
            message=sentence("too-long", field=plain(name.replace("_", " "))),
            remedy=sentence("use-most-150-characters"),
        )
        for name in ("first_name", "last_name")
        if len(getattr(user, name)) > 150
    ]
    if user.email:
        try:
            validate_email(user.email)
        except ValidationError:
            errors.append(
                FieldError(
                    field="email",
                    value=user.email,
                    message=sentence("not-mail-address"),
                    remedy=sentence("use-mail-address"),
                )
            )
    return errors
