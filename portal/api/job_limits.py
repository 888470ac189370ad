"""How many live jobs one person and one tenant may have: of the cluster, tenants and members."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.services.job_limits import (
    CLUSTER,
    DEFAULT_PER_PERSON,
    DEFAULT_PER_TENANT,
    Limits,
    limits_in_force,
    limits_of,
    set_cluster_limits,
)
from tenants.models import Membership


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimitsIn:
    """Limits of live jobs; null for the wider limit."""

    per_person: int | None
    per_tenant: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJobLimitIn:
    """The limit of one member; null for that of the tenant."""

    per_person: int | None


class JobLimitsOut(TypedDict):
    """The limits of the cluster: what is set (null: nothing), and what holds."""

    per_person: int | None
    per_tenant: int | None
    effective_per_person: int
    effective_per_tenant: int


class TenantJobLimitsOut(JobLimitsOut):
    """The limits of a tenant, and its live jobs."""

    live: int


class MemberJobLimitOut(TypedDict):
    """The limit of a member, what holds, and the live jobs of the member in the tenant."""

    per_person: int | None
    effective_per_person: int
    live: int


class JobLimitViewSet(ApiViewSet):
    """Limits that hold where a tenant has none of its own."""

    collection = "job-limits"
    operations: ClassVar = {
        "cluster": Op(answer=JobLimitsOut),
        "set_cluster": Op(body=JobLimitsIn, answer=JobLimitsOut),
    }

    @action(detail=False, methods=["get"])
    def cluster(self, request: Request) -> Response:
        """How many live jobs a person and a tenant may have."""
        return Response(_cluster_out())

    @cluster.mapping.put
    def set_cluster(self, request: Request) -> Response:
        """Set them; null means the built-in default. Cluster admins."""
        wanted = read_body(JobLimitsIn, request.data)
        set_cluster_limits(
            viewer=self.viewer,
            limits=Limits(per_person=wanted.per_person, per_tenant=wanted.per_tenant),
        )
        return Response(_cluster_out())


def tenant_job_limits_out(tenant_id: int) -> TenantJobLimitsOut:
    """The limits of a tenant."""
    own, held = limits_of(f"tenant:{tenant_id}"), limits_in_force(tenant_id, None)
    return {
        "per_person": own.per_person,
        "per_tenant": own.per_tenant,
        "effective_per_person": held.per_person,
        "effective_per_tenant": held.per_tenant,
        "live": held.of_tenant,
    }


def member_job_limit_out(member: Membership) -> MemberJobLimitOut:
    """The limit of a member."""
    own = limits_of(f"member:{member.tenant_id}:{member.user_id}")
    held = limits_in_force(member.tenant_id, member.user_id)
    return {
        "per_person": own.per_person,
        "effective_per_person": held.per_person,
        "live": held.of_person,
    }


def _cluster_out() -> JobLimitsOut:
    own = limits_of(CLUSTER)
    return {
        "per_person": own.per_person,
        "per_tenant": own.per_tenant,
        "effective_per_person": own.per_person or DEFAULT_PER_PERSON,
        "effective_per_tenant": own.per_tenant or DEFAULT_PER_TENANT,
    }
