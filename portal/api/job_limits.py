"""Limits of live jobs per person and per tenant: of the cluster, of tenants and of members."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body
from portal.api.response_models import Body, From
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.selectors.job_limits import (
    LimitView,
    MemberJobLimit,
    cluster_job_limits,
    job_limits_of_members,
    job_limits_of_tenants,
)
from scheduling.services.job_limits import Limits, set_cluster_limits
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
    """The limit of one member; null: that of the tenant."""

    per_person: int | None


class JobLimitsOut(TypedDict):
    """Limits set at a place (null: none), those in force, and where each of these is set.

    `source_…`: `tenant`, `cluster` or `built-in`.
    """

    per_person: int | None
    per_tenant: int | None
    effective_per_person: int
    effective_per_tenant: int
    source_per_person: str
    source_per_tenant: str


class ListedTenantJobLimitsOut(JobLimitsOut):
    """The limits of a tenant in a list, and its live jobs."""

    tenant: str
    live: int


class ClusterJobLimitsOut(JobLimitsOut):
    """The limits of the cluster, and those of each tenant that you may see."""

    tenants: list[ListedTenantJobLimitsOut]


class MemberJobLimitOut(TypedDict):
    """The limit of a member, the one in force and where it is set, and the member's live jobs.

    `source_per_person`: `member`, `tenant`, `cluster` or `built-in`.
    """

    per_person: Annotated[int | None, From("per_person.own")]
    effective_per_person: Annotated[int, From("per_person.value")]
    source_per_person: Annotated[str, From("per_person.source.value")]
    live: int


class ListedMemberJobLimitOut(MemberJobLimitOut):
    """The limit of a member in a list; `id` is that of the membership."""

    id: int
    username: str


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
        """The limits of live jobs of a person and of a tenant, and live jobs by tenant."""
        return Response(_cluster_out(self.viewer))

    @cluster.mapping.put
    def set_cluster(self, request: Request) -> Response:
        """Set the limits; null: the built-in limit. Cluster admins only."""
        wanted = read_body(JobLimitsIn, request.data)
        set_cluster_limits(
            viewer=self.viewer,
            limits=Limits(per_person=wanted.per_person, per_tenant=wanted.per_tenant),
        )
        return Response(_cluster_out(self.viewer))


def tenant_job_limits_out(viewer: Viewer, tenant: Tenant) -> TenantJobLimitsOut:
    """The limits of a tenant and of its members."""
    (found,) = job_limits_of_tenants([tenant])
    members = job_limits_of_members(list(members_for(viewer, tenant_id=tenant.pk)))
    return {
        **_limits_out(found.per_person, found.per_tenant),
        "live": found.live,
        "members": [
            {
                **_member_out(member),
                "id": member.membership.pk,
                "username": member.membership.user.username,
            }
            for member in members
        ],
    }


def member_job_limit_out(member: Membership) -> MemberJobLimitOut:
    """The limit of a member."""
    (found,) = job_limits_of_members([member])
    return _member_out(found)


_member_out = Body(MemberJobLimitOut, MemberJobLimit)


def _cluster_out(viewer: Viewer) -> ClusterJobLimitsOut:
    found = cluster_job_limits()
    tenants = job_limits_of_tenants(list(tenants_for(viewer)))
    return {
        **_limits_out(found.per_person, found.per_tenant),
        "tenants": [
            {
                **_limits_out(one.per_person, one.per_tenant),
                "tenant": one.tenant.name,
                "live": one.live,
            }
            for one in tenants
        ],
    }


def _limits_out(per_person: LimitView, per_tenant: LimitView) -> JobLimitsOut:
    return {
        "per_person": per_person.own,
        "per_tenant": per_tenant.own,
        "effective_per_person": per_person.value,
        "effective_per_tenant": per_tenant.value,
        "source_per_person": per_person.source.value,
        "source_per_tenant": per_tenant.source.value,
    }
