"""Credentials: API tokens, and one-time links for choosing a password."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, TypedDict

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response

from portal.addresses import link_address
from portal.api.authentication import (
    PASSWORD_OR_SESSION,
    PasswordAuthentication,
    SessionAuthentication,
    TokenAuthentication,
)
from portal.api.bodies import read_body
from portal.api.schema import IDEMPOTENCY_KEY, PAGE, Op
from portal.api.views import ApiViewSet, ToldOnceError, make_with_key
from tenants import services
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.models import ApiToken
from tenants.selectors import TokenRow, tokens_for
from tenants.services import FormSentError, issue_token, revoke_token
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIn:
    """A new token; ``tenant`` (name or number) restricts it to one tenant."""

    name: str
    scopes: tuple[str, ...]
    expires_in_days: float | None = None
    tenant: int | str | None = None


class TokenOut(TypedDict):
    """A token without its key."""

    id: int
    name: str
    prefix: str
    scopes: list[str]
    tenant: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewTokenOut(TokenOut):
    """A new token; ``key`` is never shown again."""

    key: str


class TokenViewSet(ApiViewSet):
    collection = "tokens"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=TokenOut, pages=True),
        "create": Op(takes=(IDEMPOTENCY_KEY,), body=TokenIn, answer=NewTokenOut, status=201),
        "destroy": Op(status=204),
    }

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Return the authenticators of a request; only creating a token accepts a password."""
        usual: list[BaseAuthentication] = [TokenAuthentication(), SessionAuthentication()]
        is_post = self.request is None or self.request.method == "POST"
        return [PasswordAuthentication(), *usual] if is_post else usual

    def list(self, request: Request) -> Response:
        """List your tokens, without their keys."""
        rows = tokens_for(self.viewer)
        return self.page(
            self.cut(rows, lambda row: row.id), lambda row: token_out(self.viewer, row)
        )

    def create(self, request: Request) -> Response:
        """Create a token for yourself, with name and password (basic authentication).

        A repeated `Idempotency-Key` creates no second token: 409 (`told-once`) names the first
        one, whose key was in the first response only.
        """
        wanted = read_body(TokenIn, request.data)
        issue = partial(
            issue_token,
            viewer=self.viewer,
            name=wanted.name,
            scopes=wanted.scopes,
            tenant_id=_tenant_id(self.viewer, wanted.tenant),
            expires_in=_life(wanted.expires_in_days),
            now=database_now(),
        )
        try:
            issued = make_with_key(
                request, issue, viewer=self.viewer, made_key=lambda made: made.token.pk
            )
        except FormSentError as earlier:
            remedy = "If you lost it, revoke that token and create another with a new key."
            raise ToldOnceError.of("token", earlier.made, remedy) from None
        body = new_token_out(self.viewer, issued.token, issued.key)
        return Response(body, status=201, headers={"Cache-Control": "no-store"})

    def destroy(self, request: Request, pk: int) -> Response:
        """Revoke a token immediately."""
        revoke_token(viewer=self.viewer, token_id=pk, now=database_now())
        return Response(status=204)


def token_out(viewer: Viewer, row: TokenRow) -> TokenOut:
    return {
        "id": row.id,
        "name": row.name,
        "prefix": row.prefix,
        "scopes": list(row.scopes),
        "tenant": None if row.tenant_id is None else viewer.name_of(row.tenant_id),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "last_used_at": row.last_used_at,
        "revoked_at": row.revoked_at,
    }


def new_token_out(viewer: Viewer, token: ApiToken, key: str) -> NewTokenOut:
    """Return a token with its key, which no later response contains."""
    return {**token_out(viewer, TokenRow.of(token)), "key": key}


def _tenant_id(viewer: Viewer, wanted: int | str | None) -> int | None:
    if wanted is None or isinstance(wanted, int):
        return wanted
    by_name = {name: tenant_id for tenant_id, name in viewer.tenant_names.items()}
    if wanted not in by_name:
        raise InvalidError(
            "You are not a member of this tenant.",
            field="tenant",
            value=wanted,
            remedy=f"Use one of: {', '.join(sorted(by_name)) or 'none yet'}.",
        )
    return by_name[wanted]


def _life(days: float | None) -> timedelta | None:
    if days is None:
        return None
    try:
        return timedelta(days=days)
    except OverflowError:
        raise InvalidError(
            "A token cannot have this lifetime.",
            field="expires_in_days",
            value=days,
            remedy="Use a number of days, or omit it for a token that does not expire.",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordLinkIn:
    """The user whose password the link sets."""

    username: str


class PasswordLinkOut(TypedDict):
    """A one-time link with which the user sets a password; shown only once."""

    username: str
    url: str
    expires_at: datetime


class PasswordLinkViewSet(ApiViewSet):
    collection = "password-links"
    authentication_classes = PASSWORD_OR_SESSION
    operations: ClassVar = {
        "create": Op(body=PasswordLinkIn, answer=PasswordLinkOut, status=201),
    }

    def create(self, request: Request) -> Response:
        """Create a password link for a user; cluster admins only, tokens are refused."""
        wanted = read_body(PasswordLinkIn, request.data)
        link = services.issue_password_link(
            viewer=self.viewer, username=wanted.username, now=database_now()
        )
        portal_url = request.build_absolute_uri("/").rstrip("/")
        body: PasswordLinkOut = {
            "username": link.username,
            "url": link_address(portal_url, link),
            "expires_at": link.expires_at,
        }
        return Response(body, status=201, headers={"Cache-Control": "no-store"})
