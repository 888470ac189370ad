"""Limits of live jobs with their sources, and numbers of live jobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from django.db.models import Count

from scheduling.jobs.models import (
    CLUSTER,
    DEFAULT_PER_PERSON,
    DEFAULT_PER_TENANT,
    Job,
    JobLimit,
    JobQuerySet,
    member_key,
    tenant_key,
)
from tenants.models import Membership, Tenant


class LimitSource(StrEnum):
    """The place where an effective limit is set."""

    MEMBER = "member"
    TENANT = "tenant"
    CLUSTER = "cluster"
    BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """One limit.

    Attributes:
        own: limit set at this place; None if the wider limit applies.
        value: effective limit, in jobs.
        source: place where ``value`` is set.
    """

    own: int | None
    value: int
    source: LimitSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJobLimits:
    """The limits of tenants without limits of their own."""

    per_person: LimitView
    per_tenant: LimitView


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantJobLimits:
    """The limits of a tenant and of each person in it, and the tenant's live jobs."""

    tenant: Tenant
    per_person: LimitView
    per_tenant: LimitView
    live: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJobLimit:
    """The limit of one person in a tenant, and that person's live jobs in it."""

    membership: Membership
    per_person: LimitView
    live: int


def cluster_job_limits() -> ClusterJobLimits:
    """Return the limits of the cluster, in one query."""
    rows = _rows([CLUSTER])
    places = ((LimitSource.CLUSTER, CLUSTER),)
    return ClusterJobLimits(
        per_person=_per_person(rows, places), per_tenant=_per_tenant(rows, places)
    )


def job_limits_of_tenants(tenants: Sequence[Tenant]) -> tuple[TenantJobLimits, ...]:
    """Return the limits of tenants in two queries; the caller has checked the rights."""
    ids = [tenant.pk for tenant in tenants]
    rows = _rows([CLUSTER, *map(tenant_key, ids)])
    live = _live(Job.objects.unscoped().filter(tenant_id__in=ids), "tenant_id")
    found = []
    for tenant in tenants:
        places = ((LimitSource.TENANT, tenant_key(tenant.pk)), (LimitSource.CLUSTER, CLUSTER))
        found.append(
            TenantJobLimits(
                tenant=tenant,
                per_person=_per_person(rows, places),
                per_tenant=_per_tenant(rows, places),
                live=live.get(tenant.pk, 0),
            )
        )
    return tuple(found)


def job_limits_of_members(members: Sequence[Membership]) -> tuple[MemberJobLimit, ...]:
    """Return the limits of members in two queries; the caller has checked the rights."""
    if not members:
        return ()
    tenant_id = members[0].tenant_id
    ids = [member.user_id for member in members]
    wider = ((LimitSource.TENANT, tenant_key(tenant_id)), (LimitSource.CLUSTER, CLUSTER))
    rows = _rows([*(key for _, key in wider), *(member_key(tenant_id, user) for user in ids)])
    jobs = Job.objects.unscoped().filter(tenant_id=tenant_id, owner_id__in=ids)
    live = _live(jobs, "owner_id")
    return tuple(
        MemberJobLimit(
            membership=member,
            per_person=_per_person(
                rows, ((LimitSource.MEMBER, member_key(tenant_id, member.user_id)), *wider)
            ),
            live=live.get(member.user_id, 0),
        )
        for member in members
    )


Places = tuple[tuple[LimitSource, str], ...]
"""Scopes of a limit, narrowest first, each with its key."""


def _per_person(rows: Mapping[str, JobLimit], places: Places) -> LimitView:
    set_at = [(source, rows[key].per_person if key in rows else None) for source, key in places]
    return _in_force(set_at, DEFAULT_PER_PERSON)


def _per_tenant(rows: Mapping[str, JobLimit], places: Places) -> LimitView:
    set_at = [(source, rows[key].per_tenant if key in rows else None) for source, key in places]
    return _in_force(set_at, DEFAULT_PER_TENANT)


def _in_force(set_at: Sequence[tuple[LimitSource, int | None]], default: int) -> LimitView:
    for source, value in set_at:
        if value is not None:
            return LimitView(own=set_at[0][1], value=value, source=source)
    return LimitView(own=None, value=default, source=LimitSource.BUILT_IN)


def _rows(keys: Iterable[str]) -> Mapping[str, JobLimit]:
    return {row.key: row for row in JobLimit.objects.filter(key__in=list(keys))}


def _live(jobs: JobQuerySet, by: str) -> Mapping[int, int]:
    return dict(jobs.live().values_list(by).annotate(live=Count("id")).order_by())
