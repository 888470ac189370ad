"""Tenants, and the limits of live jobs: of the cluster, of tenants and of members."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body, read_changes
from portal.api.schema import IF_MATCH, PAGE, Op
from portal.api.views import ApiViewSet, Nothing, expected_version, versioned
from scheduling.jobs.queries.job_limits import (
    ClusterJobLimits,
    MemberJobLimit,
    TenantJobLimits,
    cluster_job_limits,
    job_limits_of_members,
    job_limits_of_tenants,
)
from scheduling.jobs.services.job_limits import JobLimits, set_cluster_limits, set_tenant_limits
from scheduling.notices.queries import budget_of
from scheduling.notices.services.quotas import gpu_hours_since, month_start, set_budget
from tenants import services
from tenants.clock import database_now
from tenants.models import Membership, Tenant
from tenants.selectors import members_for, tenant_for, tenants_for
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimitsIn:
    """Limits of live jobs; if a limit is null, the wider limit applies."""

    per_person: int | None
    per_tenant: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJobLimitIn:
    """The limit of one member; if it is null, the limit of the tenant applies."""

    per_person: int | None


class JobLimitsOut(TypedDict):
    """Limits set at one place (null if unset), effective limits, and their sources.

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
    """The limits of the cluster, and the limits of each tenant that you may see."""

    tenants: list[ListedTenantJobLimitsOut]


class MemberJobLimitOut(TypedDict):
    """The limit of a member, the effective limit with its source, and the member's live jobs.

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
        """Set the limits (cluster admins only); null selects the built-in limit."""
        wanted = read_body(JobLimitsIn, request.data)
        set_cluster_limits(
            viewer=self.viewer,
            limits=JobLimits(per_person=wanted.per_person, per_tenant=wanted.per_tenant),
        )
        return Response(_cluster_out(self.viewer))


def tenant_job_limits_out(viewer: Viewer, tenant: Tenant) -> TenantJobLimitsOut:
    (found,) = job_limits_of_tenants([tenant])
    members = job_limits_of_members(list(members_for(viewer, tenant_id=tenant.pk)))
    return {
        **_limits_of_tenant(found),
        "live": found.live,
        "members": [_listed_member(member) for member in members],
    }


def member_job_limit_out(member: Membership) -> MemberJobLimitOut:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantIn:
    """A new tenant; its short ``name`` cannot be changed later."""

    name: str
    display_name: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPatch:
    """Changes to a tenant."""

    display_name: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetIn:
    """The monthly budget of a tenant in GPU-hours; null removes the budget."""

    gpu_hours_per_month: float | None


class BudgetOut(TypedDict):
    """The monthly budget of a tenant, and its use in this month."""

    gpu_hours_per_month: float | None
    used_this_month: float


class TenantOut(TypedDict):
    """A tenant; ``role`` is your role in it, null for a cluster admin who is not a member."""

    id: int
    name: str
    display_name: str
    note: str
    position: int
    role: str | None
    created_at: datetime
    archived_at: datetime | None
    version: int


class TenantViewSet(ApiViewSet):
    collection = "tenants"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=TenantOut, pages=True),
        "create": Op(body=TenantIn, answer=TenantOut, status=201),
        "retrieve": Op(answer=TenantOut),
        "partial_update": Op(takes=(IF_MATCH,), body=TenantPatch, answer=TenantOut),
        "archive": Op(takes=(IF_MATCH,), answer=TenantOut),
        "restore": Op(takes=(IF_MATCH,), answer=TenantOut),
        "budget": Op(answer=BudgetOut),
        "set_budget": Op(body=BudgetIn, answer=BudgetOut),
        "job_limits": Op(answer=TenantJobLimitsOut),
        "set_job_limits": Op(body=JobLimitsIn, answer=TenantJobLimitsOut),
    }

    def list(self, request: Request) -> Response:
        """List your tenants, or all for cluster admins."""
        found = self.rows(tenants_for(self.viewer))
        return self.page(found, lambda row: tenant_out(self.viewer, row))

    def create(self, request: Request) -> Response:
        """Create a tenant."""
        wanted = read_body(TenantIn, request.data)
        tenant = services.create_tenant(
            viewer=self.viewer,
            name=wanted.name,
            display_name=wanted.display_name,
            note=wanted.note,
        )
        return self._answer(tenant, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a tenant."""
        return self._answer(tenant_for(self.viewer, pk))

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update the description of a tenant."""
        tenant_for(self.viewer, pk)
        tenant = services.update_tenant(
            viewer=self.viewer,
            tenant_id=pk,
            expected_version=expected_version(request),
            **read_changes(TenantPatch, request.data),
        )
        return self._answer(tenant)

    @action(detail=True, methods=["post"])
    def archive(self, request: Request, pk: int) -> Response:
        """Archive a tenant: it takes no new jobs, and its history remains."""
        read_body(Nothing, request.data)
        tenant = services.archive_tenant(
            viewer=self.viewer,
            tenant_id=tenant_for(self.viewer, pk).pk,
            now=database_now(),
            expected_version=expected_version(request),
        )
        return self._answer(tenant)

    @action(detail=True, methods=["post"])
    def restore(self, request: Request, pk: int) -> Response:
        """Restore an archived tenant."""
        read_body(Nothing, request.data)
        tenant = services.restore_tenant(
            viewer=self.viewer,
            tenant_id=tenant_for(self.viewer, pk).pk,
            expected_version=expected_version(request),
        )
        return self._answer(tenant)

    @action(detail=True, methods=["get"])
    def budget(self, request: Request, pk: int) -> Response:
        """Get the monthly budget of a tenant in GPU-hours, and its use in this month."""
        return self._budget(tenant_for(self.viewer, pk).pk)

    @budget.mapping.put
    def set_budget(self, request: Request, pk: int) -> Response:
        """Set the monthly budget of a tenant in GPU-hours; jobs are not stopped at the budget."""
        wanted = read_body(BudgetIn, request.data)
        set_budget(
            viewer=self.viewer,
            tenant_id=tenant_for(self.viewer, pk).pk,
            hours=wanted.gpu_hours_per_month,
        )
        return self._budget(pk)

    def _budget(self, tenant_id: int) -> Response:
        hours = budget_of(self.viewer, tenant_id)
        now = database_now()
        used = gpu_hours_since(month_start(now), now=now, tenant_ids={tenant_id})
        spent = round(used.get(tenant_id, 0.0), 3)
        return Response({"gpu_hours_per_month": hours, "used_this_month": spent})

    @action(detail=True, methods=["get"], url_path="job-limits")
    def job_limits(self, request: Request, pk: int) -> Response:
        """Get the limits of live jobs of a tenant and its members, and their live jobs."""
        return Response(tenant_job_limits_out(self.viewer, tenant_for(self.viewer, pk)))

    @job_limits.mapping.put
    def set_job_limits(self, request: Request, pk: int) -> Response:
        """Set the limits; null selects the cluster's limit. Leads may set only `per_person`."""
        wanted = read_body(JobLimitsIn, request.data)
        tenant = tenant_for(self.viewer, pk)
        limits = JobLimits(per_person=wanted.per_person, per_tenant=wanted.per_tenant)
        set_tenant_limits(viewer=self.viewer, tenant_id=tenant.pk, name=tenant.name, limits=limits)
        return Response(tenant_job_limits_out(self.viewer, tenant))

    def _answer(self, tenant: Tenant, *, status: int = 200) -> Response:
        return versioned(tenant_out(self.viewer, tenant), tenant.version, status=status)


def tenant_out(viewer: Viewer, tenant: Tenant) -> TenantOut:
    role = viewer.role_in(tenant.pk)
    return {
        "id": tenant.pk,
        "name": tenant.name,
        "display_name": tenant.display_name,
        "note": tenant.note,
        "position": tenant.position,
        "role": role.value if role else None,
        "created_at": tenant.created_at,
        "archived_at": tenant.archived_at,
        "version": tenant.version,
    }
