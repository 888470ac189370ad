"""Users: create, activate, deactivate, and grant cluster admin."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Final, TypedDict

from django.db import transaction
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.addresses import link_address
from portal.api.authentication import (
    PasswordAuthentication,
    SessionAuthentication,
    TokenAuthentication,
)
from portal.api.request_models import read_body, read_changes
from portal.api.response_models import Body, From
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from tenants import services
from tenants.clock import database_now
from tenants.errors import NotFoundError
from tenants.models import User
from tenants.roles import Permission
from tenants.selectors import users_for
from tenants.viewers import Viewer

# A token is accepted here, too, so that its refusal names the remedy.
_PASSWORD_OR_SESSION: Final = [TokenAuthentication, SessionAuthentication, PasswordAuthentication]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserIn:
    """A new user; without a password, the user sets one with a password link."""

    username: str
    password: str | None = None
    email: str = ""
    first_name: str = ""
    last_name: str = ""
    is_cluster_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPatch:
    """Changes to a user."""

    is_active: bool = True
    is_cluster_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordIn:
    """Your current and new password; ``revoke_tokens`` revokes your API tokens."""

    password: str
    current_password: str | None = None
    revoke_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordLinkIn:
    """The user whose password the link sets."""

    username: str


class PasswordLinkOut(TypedDict):
    """A one-time link with which the user sets a password; shown only once."""

    username: str
    url: str
    expires_at: datetime


class UserOut(TypedDict):
    """A user; ``email`` is shown to cluster admins and to the user only."""

    id: Annotated[int, From("pk")]
    username: str
    name: Annotated[str, From(by=User.get_full_name)]
    email: str
    is_active: bool
    is_cluster_admin: bool
    last_login: datetime | None


class TenantRoleOut(TypedDict):
    """A tenant and your role in it."""

    id: int
    name: str
    role: str | None


class MeOut(TypedDict):
    """Your user and roles, and the scopes of the token (null without a token)."""

    id: int | None
    username: str
    is_cluster_admin: bool
    scopes: list[str] | None
    tenants: list[TenantRoleOut]


class UserViewSet(ApiViewSet):
    """People."""

    collection = "users"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=UserOut, pages=True),
        "create": Op(body=UserIn, answer=UserOut, status=201),
        "retrieve": Op(answer=UserOut),
        "partial_update": Op(body=UserPatch, answer=UserOut),
        "password": Op(body=PasswordIn, status=204),
        "me": Op(answer=MeOut),
    }

    def list(self, request: Request) -> Response:
        """List users of your tenants, or all for cluster admins."""
        return self.page(self.rows(users_for(self.viewer)), lambda row: user_out(self.viewer, row))

    def create(self, request: Request) -> Response:
        """Create a user."""
        wanted = read_body(UserIn, request.data)
        user = services.create_user(
            viewer=self.viewer,
            username=wanted.username,
            password=wanted.password,
            email=wanted.email,
            first_name=wanted.first_name,
            last_name=wanted.last_name,
            is_cluster_admin=wanted.is_cluster_admin,
        )
        return Response(user_out(self.viewer, user), status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a user."""
        return Response(user_out(self.viewer, self._user(pk)))

    def partial_update(self, request: Request, pk: int) -> Response:
        """Activate or deactivate a user; grant or revoke the cluster admin role."""
        user = self._user(pk)
        changes = read_changes(UserPatch, request.data)
        with transaction.atomic():
            if "is_active" in changes:
                services.set_user_active(
                    viewer=self.viewer, user_id=user.pk, is_active=changes["is_active"]
                )
            if "is_cluster_admin" in changes:
                is_admin = changes["is_cluster_admin"]
                act = services.grant_cluster_admin if is_admin else services.revoke_cluster_admin
                act(viewer=self.viewer, user_id=user.pk)
        return Response(user_out(self.viewer, self._user(pk)))

    @action(detail=True, methods=["post"], authentication_classes=_PASSWORD_OR_SESSION)
    def password(self, request: Request, pk: int) -> Response:
        """Change your own password, by session or basic authentication; tokens are refused."""
        wanted = read_body(PasswordIn, request.data)
        services.set_password(
            viewer=self.viewer,
            user_id=self._user(pk).pk,
            password=wanted.password,
            current_password=wanted.current_password,
            revoke_tokens=wanted.revoke_tokens,
        )
        return Response(status=204)

    @action(detail=False, methods=["get"])
    def me(self, request: Request) -> Response:
        """Get your user, roles and token scopes."""
        return Response(me_out(self.viewer))

    def _user(self, pk: int) -> User:
        found = users_for(self.viewer).filter(pk=pk).first()
        if found is None:
            raise NotFoundError(
                "User not found, or you may not see the user.", field="user", value=pk
            )
        return found


class PasswordLinkViewSet(ApiViewSet):
    """One-time links for choosing a password."""

    collection = "password-links"
    authentication_classes = _PASSWORD_OR_SESSION
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


def user_out(viewer: Viewer, user: User) -> UserOut:
    """A person; the address and the last sign-in only for admins and the person."""
    body = _user_out(user)
    if not viewer.can(Permission.MANAGE_USERS) and viewer.user_id != user.pk:
        body["email"], body["last_login"] = "", None
    return body


_user_out = Body(UserOut, User)


def me_out(viewer: Viewer) -> MeOut:
    """Return the viewer's own account."""
    scopes = viewer.scopes
    tenants: list[TenantRoleOut] = []
    for tenant_id, name in sorted(viewer.tenant_names.items()):
        role = viewer.role_in(tenant_id)
        tenants.append({"id": tenant_id, "name": name, "role": role.value if role else None})
    return {
        "id": viewer.user_id,
        "username": viewer.username,
        "is_cluster_admin": viewer.is_cluster_admin,
        "scopes": None if scopes is None else sorted(scope.value for scope in scopes),
        "tenants": tenants,
    }
