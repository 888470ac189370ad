"""Members of tenants: roles and device caps per person."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.job_limits import MemberJobLimitIn, MemberJobLimitOut, member_job_limit_out
from portal.api.request_models import read_body, read_changes
from portal.api.response_models import Body, From
from portal.api.schema import IF_MATCH, PAGE, Op
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.clusters.services.virtual_clusters import set_member_limits
from scheduling.jobs.services.job_limits import set_member_limit
from tenants import services
from tenants.clock import database_now
from tenants.models import Membership
from tenants.selectors import member_for, members_for, tenant_for


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
    """People in tenants."""

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
        """Set the limit; null: the limit of the tenant."""
        wanted = read_body(MemberJobLimitIn, request.data)
        member = member_for(self.viewer, pk)
        set_member_limit(viewer=self.viewer, member=member, per_person=wanted.per_person)
        return Response(member_job_limit_out(member))


member_out = Body(MembershipOut, Membership)
