"""Tokens for scripts: shown once, compared in constant time, limited to their owner's rights."""

import hashlib
import hmac
import logging
import re
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, IntegrityError, OperationalError, transaction
from django.db.models import F, Q, QuerySet

from tenants.audit import record
from tenants.compiled_sql import CompiledQuery
from tenants.errors import FieldError, ForbiddenError, InvalidError, NotFoundError
from tenants.messages import sentence
from tenants.models import ApiToken, User
from tenants.roles import Permission, Scope, grantable_scopes
from tenants.viewers import Viewer

_KEY: Final = re.compile(r"tsr_(?P<prefix>[a-z0-9]{8})_[0-9a-f]{64}")
_ALPHABET: Final = string.ascii_lowercase + string.digits
_NO_DIGEST: Final = "0" * 64
_SEEN_EVERY: Final = timedelta(minutes=1)
LONGEST_LIFE: Final = timedelta(days=3650)
_TRIES: Final = 5

_TOKEN_COLUMNS: Final = [field.attname for field in ApiToken._meta.concrete_fields]
# A request with a token needs no password.
_USER_COLUMNS: Final = [
    field.attname for field in User._meta.concrete_fields if field.attname != "password"
]


def _tokens_of(prefix: object) -> QuerySet[ApiToken, Any]:
    rows = ApiToken.objects.filter(prefix=prefix).order_by()
    return rows.values_list(*_TOKEN_COLUMNS, *(f"user__{name}" for name in _USER_COLUMNS))


_BY_PREFIX: Final = CompiledQuery(_tokens_of)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token together with its key, which exists nowhere else; show it once.

    Attributes:
        token: the stored row.
        key: ``tsr_<prefix>_<secret>``; omitted from ``repr``, and so from logs.
    """

    token: ApiToken
    key: str = field(repr=False)


def issue_token(
    *,
    viewer: Viewer,
    name: str,
    scopes: Iterable[str],
    tenant_id: int | None = None,
    expires_in: timedelta | None = None,
    now: datetime,
) -> IssuedToken:
    """Create a token for the viewer's own scripts.

    Args:
        viewer: owner, in a session (a token cannot create tokens).
        name: label of the token.
        scopes: permissions of the token, within the owner's roles.
        tenant_id: the only visible tenant; None for all of the owner's.
        expires_in: lifetime of the token; None for no end.
        now: current time.

    Raises:
        ForbiddenError: the viewer uses a token, or is not a person.
        InvalidError: invalid name, scopes, tenant or life; all faults are listed.
    """
    viewer.require(Permission.ISSUE_TOKENS, what="tokens")
    wanted = list(dict.fromkeys(scopes))
    name = name.strip()
    InvalidError.raise_if(
        [
            *_name_errors(name),
            *_life_errors(expires_in),
            *_tenant_errors(viewer, tenant_id),
            *_scope_errors(viewer, wanted, tenant_id),
        ]
    )
    for _ in range(_TRIES):
        try:
            return _insert(
                viewer,
                name=name,
                scopes=wanted,
                tenant_id=tenant_id,
                expires_in=expires_in,
                now=now,
            )
        except (
            IntegrityError
        ):  # 36^8 prefixes: a collision is rare; two in a row have another cause
            continue
    raise RuntimeError("no free token prefix was found")


def authenticate_token(key: str, now: datetime) -> tuple[User, ApiToken] | None:
    """Return the owner and row of a valid key, or None.

    Unknown prefixes cost the same work as known ones, and digests are compared in constant time.
    The time of use is written at most once a minute.

    Args:
        key: untrusted text of the request.
        now: current time.
    """
    match = _KEY.fullmatch(key) if len(key) <= 100 else None
    if match is None:
        return None
    token = _token_of(match["prefix"])
    is_right = hmac.compare_digest(_digest(key), token.digest if token else _NO_DIGEST)
    if token is None or not is_right or not _is_live(token, now):
        return None
    _note_use(token, now)
    return token.user, token


def revoke_token(*, viewer: Viewer, token_id: int, now: datetime) -> None:
    """Revoke an own token (also by the token itself); cluster admins revoke any token.

    A manager of a tenant's members, in a session, may revoke members' tokens that are limited to
    this tenant.

    Raises:
        NotFoundError: unknown token, or of another person.
    """
    with transaction.atomic():
        token = _owned(viewer, token_id, managed=True)
        rows = ApiToken.objects.filter(pk=token.pk, revoked_at=None)
        if rows.update(revoked_at=now):
            _record(viewer, "token.revoke", token)


def rotate_token(*, viewer: Viewer, token_id: int, now: datetime) -> IssuedToken:
    """Rotate a token of the viewer: issue a new one with the same name, scopes and lifetime.

    The old token is revoked in the same transaction. The rotation fails if the owner has lost a
    scope in the meantime.

    Raises:
        NotFoundError: not a live token of the viewer.
        ForbiddenError, InvalidError: as in ``issue_token``.
    """
    with transaction.atomic():
        old = _owned(viewer, token_id)
        if old.user_id != viewer.user_id or not _is_live(old, now):
            raise _not_found(token_id)
        life = old.expires_at - old.created_at if old.expires_at else None
        issued = issue_token(
            viewer=viewer,
            name=old.name,
            scopes=old.scopes,
            tenant_id=old.tenant_id,
            expires_in=life,
            now=now,
        )
        if not ApiToken.objects.filter(pk=old.pk, revoked_at=None).update(revoked_at=now):
            raise _not_found(token_id)
        _record(viewer, "token.revoke", old)
    return issued


@transaction.atomic
def _insert(
    viewer: Viewer,
    *,
    name: str,
    scopes: list[str],
    tenant_id: int | None,
    expires_in: timedelta | None,
    now: datetime,
) -> IssuedToken:
    if viewer.user_id is None:
        raise ForbiddenError(
            sentence("only-users-own-tokens"), remedy=sentence("sign-in-as-user-first")
        )
    prefix = "".join(secrets.choice(_ALPHABET) for _ in range(8))
    key = f"tsr_{prefix}_{secrets.token_hex(32)}"
    token = ApiToken.objects.create(
        user_id=viewer.user_id,
        name=name,
        prefix=prefix,
        digest=_digest(key),
        scopes=scopes,
        tenant_id=tenant_id,
        created_at=now,
        expires_at=now + expires_in if expires_in is not None else None,
    )
    _record(viewer, "token.issue", token)
    return IssuedToken(token=token, key=key)


def _record(viewer: Viewer, action: str, token: ApiToken) -> None:
    facts: dict[str, object] = {
        "name": token.name,
        "prefix": token.prefix,
        "scopes": token.scopes,
        "expires_at": token.expires_at,
    }
    is_new = action == "token.issue"
    record(
        actor=viewer,
        action=action,
        obj=token,
        before={} if is_new else facts,
        after=facts if is_new else {},
        tenant=token.tenant_id,
    )


def _token_of(prefix: str) -> ApiToken | None:
    """Return the current token with this prefix, with its owner."""
    rows = _BY_PREFIX.values(prefix)
    if not rows:
        return None
    values, at = rows[0], len(_TOKEN_COLUMNS)
    token = ApiToken.from_db(DEFAULT_DB_ALIAS, _TOKEN_COLUMNS, values[:at])
    token.user = User.from_db(DEFAULT_DB_ALIAS, _USER_COLUMNS, values[at:])
    return token


def _is_live(token: ApiToken, now: datetime) -> bool:
    is_in_time = token.expires_at is None or now < token.expires_at
    return is_in_time and token.revoked_at is None and token.user.is_active


def _note_use(token: ApiToken, now: datetime) -> None:
    seen_before = now - _SEEN_EVERY
    if token.last_used_at is not None and token.last_used_at > seen_before:
        return
    rows = ApiToken.objects.filter(pk=token.pk).filter(
        Q(last_used_at=None) | Q(last_used_at__lte=seen_before)
    )
    try:
        with transaction.atomic():
            rows.update(last_used_at=now)
    except OperationalError:
        # A busy database must not reject a read request because of a time stamp.
        logger.warning("could not record the use of token %s", token.prefix)


def _owned(viewer: Viewer, token_id: int, *, managed: bool = False) -> ApiToken:
    """Return the viewer's token; with ``managed`` also one of a member that they manage."""
    rows = ApiToken.objects.select_related("user").filter(pk=token_id)
    if viewer.token_prefix and not viewer.can(Permission.MANAGE_USERS):
        rows = rows.filter(prefix=viewer.token_prefix)
    elif not viewer.can(Permission.MANAGE_USERS):
        mine = Q(user=viewer.user_id)
        if managed:
            tenants = viewer.tenant_ids(Permission.MANAGE_MEMBERS) or ()
            mine |= Q(tenant__in=tenants, user__memberships__tenant=F("tenant"))
        rows = rows.filter(mine)
    token = rows.first()
    if token is None:
        raise _not_found(token_id)
    return token


def _not_found(token_id: int) -> NotFoundError:
    return NotFoundError(sentence("no-such-token-yours"), field="token", value=token_id)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _name_errors(name: str) -> list[FieldError]:
    if 1 <= len(name) <= 80 and name.isprintable():
        return []
    return [
        FieldError(
            field="name",
            value=name,
            message=sentence("token-needs-name"),
            remedy=sentence("give-token-name"),
        )
    ]


def _life_errors(expires_in: timedelta | None) -> list[FieldError]:
    if expires_in is None or timedelta(0) < expires_in <= LONGEST_LIFE:
        return []
    return [
        FieldError(
            field="expires_in_days",
            value=expires_in / timedelta(days=1),
            message=sentence("token-cannot-lifetime"),
            remedy=sentence("give-lifetime", days=LONGEST_LIFE.days),
        )
    ]


def _tenant_errors(viewer: Viewer, tenant_id: int | None) -> list[FieldError]:
    if tenant_id is None or tenant_id in viewer.tenant_names:
        return []
    return [
        FieldError(
            field="tenant",
            value=tenant_id,
            message=sentence("not-your-tenant"),
            remedy=sentence("name-your-tenant"),
        )
    ]


def _scope_errors(viewer: Viewer, scopes: list[str], tenant_id: int | None) -> list[FieldError]:
    if not scopes:
        return [
            FieldError(
                field="scopes",
                value=[],
                message=sentence("token-without-scope"),
                remedy=sentence("choose", scopes=", ".join(Scope)),
            )
        ]
    roles = viewer.roles
    held = (
        roles.values() if tenant_id is None else [roles[tenant_id]] if tenant_id in roles else []
    )
    allowed = grantable_scopes(is_cluster_admin=viewer.is_cluster_admin, roles=held)
    return [_scope_error(scope, allowed) for scope in scopes if scope not in allowed]


def _scope_error(scope: str, allowed: frozenset[Scope]) -> FieldError:
    is_known = scope in set(Scope)
    choice = ", ".join(sorted(allowed)) or sentence("no-tenant-yet")
    return FieldError(
        field="scopes",
        value=scope,
        message=(sentence("roles-not-allow-scope") if is_known else sentence("no-such-scope")),
        remedy=sentence("scopes-you-may-give", choice=choice),
    )
