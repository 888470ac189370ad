"""Users, and members of tenants with their roles and caps."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, TypedDict

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.authentication import PASSWORD_OR_SESSION
from portal.api.bodies import Body, From, read_body, read_changes
from portal.api.schema import IF_MATCH, PAGE, Op
from portal.api.tenants import MemberJobLimitIn, MemberJobLimitOut, member_job_limit_out
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.clusters.services.virtual_clusters import set_member_limits
from scheduling.jobs.services.job_limits import set_member_limit
from tenants import services
from tenants.clock import database_now
from tenants.errors import NotFoundError
from tenants.models import Membership, User
from tenants.roles import Permission
from tenants.selectors import member_for, members_for, tenant_for, users_for
from tenants.viewers import Viewer


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

    @action(detail=True, methods=["post"], authentication_classes=PASSWORD_OR_SESSION)
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


def user_out(viewer: Viewer, user: User) -> UserOut:
    """Return a user; only admins and the user get the mail address and the last sign-in."""
    body = _user_out(user)
    if not viewer.can(Permission.MANAGE_USERS) and viewer.user_id != user.pk:
        body["email"], body["last_login"] = "", None
    return body


_user_out = Body(UserOut, User)


def me_out(viewer: Viewer) -> MeOut:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIn:
    """A new member of a tenant (name or number)."""

    tenant: int | str
    username: str
    role: str = "member"
    max_devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPatch:
    """Changes to a member."""

    role: str = ""
    max_devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsIn:
    """The virtual clusters of the tenant that a member may use; an empty list: all."""

    virtual_clusters: tuple[str, ...]


class LimitsOut(TypedDict):
    """The virtual clusters of the tenant that a member may use; an empty list: all."""

    virtual_clusters: list[str]


class MembershipOut(TypedDict):
    """A membership of a person in a tenant."""

    id: Annotated[int, From("pk")]
    tenant: Annotated[str, From("tenant.name")]
    username: Annotated[str, From("user.username")]
    role: str
    max_devices: int | None
    created_at: datetime
    version: int


class MemberViewSet(ApiViewSet):
    collection = "members"
    operations: ClassVar = {
        "list": Op(
            takes=(OpenApiParameter("tenant", str, description="Name."), *PAGE),
            answer=MembershipOut,
            pages=True,
        ),
        "create": Op(body=MemberIn, answer=MembershipOut, status=201),
        "retrieve": Op(answer=MembershipOut),
        "partial_update": Op(takes=(IF_MATCH,), body=MemberPatch, answer=MembershipOut),
        "destroy": Op(takes=(IF_MATCH,), status=204),
        "limits": Op(body=LimitsIn, answer=LimitsOut),
        "job_limit": Op(answer=MemberJobLimitOut),
        "set_job_limit": Op(body=MemberJobLimitIn, answer=MemberJobLimitOut),
    }

    def list(self, request: Request) -> Response:
        """List members of your tenants, or of one tenant."""
        name = self.query.text("tenant")
        tenant_id = tenant_for(self.viewer, name).pk if name else None
        return self.page(self.rows(members_for(self.viewer, tenant_id=tenant_id)), member_out)

    def create(self, request: Request) -> Response:
        """Add a person to a tenant."""
        wanted = read_body(MemberIn, request.data)
        member = services.add_member(
            viewer=self.viewer,
            tenant_id=tenant_for(self.viewer, wanted.tenant).pk,
            username=wanted.username,
            role=wanted.role,
            max_devices=wanted.max_devices,
        )
        return versioned(member_out(member), member.version, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a member."""
        member = member_for(self.viewer, pk)
        return versioned(member_out(member), member.version)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update the role or the cap of a member."""
        member = services.update_member(
            viewer=self.viewer,
            membership_id=pk,
            expected_version=expected_version(request),
            **read_changes(MemberPatch, request.data),
        )
        return versioned(member_out(member), member.version)

    def destroy(self, request: Request, pk: int) -> Response:
        """Remove a member from a tenant; the member's jobs are unchanged.

        Every member may leave in a browser session. Only a cluster admin removes the last lead.
        """
        services.remove_member(
            viewer=self.viewer, membership_id=pk, expected_version=expected_version(request)
        )
        return Response(status=204)

    @action(detail=True, methods=["put"])
    def limits(self, request: Request, pk: int) -> Response:
        """Restrict a member to some virtual clusters of the tenant."""
        wanted = read_body(LimitsIn, request.data)
        names = set_member_limits(
            viewer=self.viewer,
            membership_id=pk,
            virtual_clusters=wanted.virtual_clusters,
            now=database_now(),
        )
        return Response({"virtual_clusters": list(names)})

    @action(detail=True, methods=["get"], url_path="job-limit")
    def job_limit(self, request: Request, pk: int) -> Response:
        """Get the limit of live jobs of a member, and the member's live jobs."""
        return Response(member_job_limit_out(member_for(self.viewer, pk)))

    @job_limit.mapping.put
    def set_job_limit(self, request: Request, pk: int) -> Response:
        """Set the limit; null selects the limit of the tenant."""
        wanted = read_body(MemberJobLimitIn, request.data)
        member = member_for(self.viewer, pk)
        set_member_limit(viewer=self.viewer, member=member, per_person=wanted.per_person)
        return Response(member_job_limit_out(member))


member_out = Body(MembershipOut, Membership)
