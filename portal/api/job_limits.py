"""Limits of live jobs per person and per tenant: of the cluster, of tenants and of members."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.request_models import read_body
from portal.api.response_models import Body, From
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.jobs.queries.job_limits import (
    ClusterJobLimits,
    MemberJobLimit,
    TenantJobLimits,
    cluster_job_limits,
    job_limits_of_members,
    job_limits_of_tenants,
)
from scheduling.jobs.services.job_limits import JobLimits, set_cluster_limits
from tenants.models import Membership, Tenant
from tenants.selectors import members_for, tenants_for
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimitsIn:
    """Limits of live jobs; null: the wider limit."""

    per_person: int | None
    per_tenant: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJobLimitIn:
    """The limit of one member; null: the limit of the tenant."""

    per_person: int | None


class JobLimitsOut(TypedDict):
    """Limits set at a place (null: none), those in force, and where each of these is set.

    `source_…`: `tenant`, `cluster` or `built-in`.
    """

    per_person: Annotated[int | None, From("per_person.own")]
    per_tenant: Annotated[int | None, From("per_tenant.own")]
    effective_per_person: Annotated[int, From("per_person.value")]
    effective_per_tenant: Annotated[int, From("per_tenant.value")]
    source_per_person: Annotated[str, From("per_person.source.value")]
    source_per_tenant: Annotated[str, From("per_tenant.source.value")]


class ListedTenantJobLimitsOut(JobLimitsOut):
    """A list entry: the limits of a tenant, and its live jobs."""

    tenant: Annotated[str, From("tenant.name")]
    live: int


class ClusterJobLimitsOut(JobLimitsOut):
    """The limits of the cluster, and those of each tenant that you may see."""

    tenants: list[ListedTenantJobLimitsOut]


class MemberJobLimitOut(TypedDict):
    """The limit of a member, the limit in force with its source, and the member's live jobs.

    `source_per_person`: `member`, `tenant`, `cluster` or `built-in`.
    """

    per_person: Annotated[int | None, From("per_person.own")]
    effective_per_person: Annotated[int, From("per_person.value")]
    source_per_person: Annotated[str, From("per_person.source.value")]
    live: int


class ListedMemberJobLimitOut(MemberJobLimitOut):
    """A list entry: the limit of a member; `id` is the id of the membership."""

    id: Annotated[int, From("membership.pk")]
    username: Annotated[str, From("membership.user.username")]


class TenantJobLimitsOut(JobLimitsOut):
    """The limits of a tenant, its live jobs, and its members."""

    live: int
    members: list[ListedMemberJobLimitOut]


class JobLimitViewSet(ApiViewSet):
    """Limits of live jobs of tenants without limits of their own."""

    collection = "job-limits"
    operations: ClassVar = {
        "cluster": Op(answer=ClusterJobLimitsOut),
        "set_cluster": Op(body=JobLimitsIn, answer=ClusterJobLimitsOut),
    }

    @action(detail=False, methods=["get"])
    def cluster(self, request: Request) -> Response:
        """Get the limits of live jobs per person and per tenant, and live jobs by tenant."""
        return Response(_cluster_out(self.viewer))

    @cluster.mapping.put
    def set_cluster(self, request: Request) -> Response:
        """Set the limits; null: the built-in limit. Cluster admins only."""
        wanted = read_body(JobLimitsIn, request.data)
        set_cluster_limits(
            viewer=self.viewer,
            limits=JobLimits(per_person=wanted.per_person, per_tenant=wanted.per_tenant),
        )
        return Response(_cluster_out(self.viewer))


def tenant_job_limits_out(viewer: Viewer, tenant: Tenant) -> TenantJobLimitsOut:
    """The limits of a tenant and of its members."""
    (found,) = job_limits_of_tenants([tenant])
    members = job_limits_of_members(list(members_for(viewer, tenant_id=tenant.pk)))
    return {
        **_limits_of_tenant(found),
        "live": found.live,
        "members": [_listed_member(member) for member in members],
    }


def member_job_limit_out(member: Membership) -> MemberJobLimitOut:
    """The limit of a member."""
    (found,) = job_limits_of_members([member])
    return _limit_of_member(found)


def _cluster_out(viewer: Viewer) -> ClusterJobLimitsOut:
    tenants = job_limits_of_tenants(list(tenants_for(viewer)))
    return {
        **_limits_of_cluster(cluster_job_limits()),
        "tenants": [_listed_tenant(one) for one in tenants],
    }


_limit_of_member = Body(MemberJobLimitOut, MemberJobLimit)
_limits_of_cluster = Body(JobLimitsOut, ClusterJobLimits)
_limits_of_tenant = Body(JobLimitsOut, TenantJobLimits)
_listed_member = Body(ListedMemberJobLimitOut, MemberJobLimit)
_listed_tenant = Body(ListedTenantJobLimitsOut, TenantJobLimits)
