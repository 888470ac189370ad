"""Limits of live jobs per person and per tenant, checked in the transaction that adds jobs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Final

from django.db import transaction

from scheduling.core.messages import sentence
from scheduling.jobs.models import (
    CLUSTER,
    DEFAULT_PER_PERSON,
    DEFAULT_PER_TENANT,
    Job,
    JobLimit,
    member_key,
    tenant_key,
)
from tenants.audit import changed, record
from tenants.errors import ConflictError, FieldError, InvalidError
from tenants.models import Membership
from tenants.roles import Permission
from tenants.viewers import Viewer

MOST: Final = 10_000_000
_LOCK: Final = 0x7E55_10B5
# Raw SQL, since each submit runs it and Django would take ten times as long.
_LIMITS_AND_NEWEST: Final = """
SELECT (SELECT MAX(id) FROM scheduling_job), found.key, found.per_person, found.per_tenant
FROM (SELECT 1) AS one LEFT JOIN scheduling_joblimit AS found ON found.key IN (%s, %s, %s)
"""


class JobLimitError(ConflictError):
    """The person or the tenant has the maximum number of live jobs."""

    code = "job-limit-reached"
    title = sentence("live-job-limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Limits of one scope; None means that the limit of the wider scope applies."""

    per_person: int | None = None
    per_tenant: int | None = None


class _Bounds:
    """Upper bounds of live jobs in this process, so that few submits have to count rows.

    Job IDs only increase, so the number of new jobs is at most the number of new IDs since the
    last count.
    """

    def __init__(self) -> None:
        self._counted: dict[tuple[int, int | None], tuple[int, int]] = {}
        self._lock = Lock()

    def at_most(self, key: tuple[int, int | None], newest: int) -> int | None:
        """Return the upper bound of live jobs; None without a count."""
        known = self._counted.get(key)
        if known is None or newest < known[1]:  # IDs decrease only after a restore of the database
            return None
        return known[0] + newest - known[1]

    def keep(self, key: tuple[int, int | None], count: int, newest: int) -> None:
        """Store a committed count."""
        with self._lock:
            if len(self._counted) > 10_000:
                self._counted.clear()
            self._counted[key] = (count, newest)

    def forget(self) -> None:
        self._counted.clear()


bounds: Final = _Bounds()


def require_room(owner_id: int, owner: str, tenants: Sequence[tuple[int, str]]) -> None:
    """Check that new jobs fit the limits; called in the transaction that adds them, before the
    insert.

    Of two concurrent transactions, the second waits for the end of the first: on SQLite for the
    write lock, on PostgreSQL for a lock of the tenant.

    Args:
        owner_id: ID of the owner of the jobs.
        owner: name of the owner.
        tenants: ID and name of the tenant of each new job.

    Raises:
        JobLimitError: the jobs exceed a limit; the error contains numbers and a remedy.
    """
    _lock_tenants(sorted({tenant_id for tenant_id, _ in tenants}))
    for (tenant_id, tenant), new in sorted(Counter(tenants).items()):
        limits, newest = _in_force(tenant_id, owner_id)
        for user_id, most, whose in (
            (owner_id, limits.per_person or DEFAULT_PER_PERSON, owner),
            (None, limits.per_tenant or DEFAULT_PER_TENANT, tenant),
        ):
            _require(tenant_id, user_id, whose=whose, most=most, new=new, newest=newest)


@transaction.atomic
def set_cluster_limits(*, viewer: Viewer, limits: JobLimits) -> JobLimits:
    """Set the limits of tenants without own limits; None selects the built-in default.

    Raises:
        ForbiddenError: the viewer is not a cluster admin.
        InvalidError: a limit is not valid.
    """
    viewer.require(Permission.MANAGE_TENANTS, what="the limits of jobs")
    return _set(viewer, JobLimit(key=CLUSTER), limits, name="the cluster")


@transaction.atomic
def set_tenant_limits(
    *, viewer: Viewer, tenant_id: int, name: str, limits: JobLimits
) -> JobLimits:
    """Set the limits of a tenant.

    A lead may set the limit per person, a cluster admin also the limit of the tenant.
    """
    viewer.require(Permission.SET_CAPS, tenant_id, what="the limits of the tenant")
    row = JobLimit(key=tenant_key(tenant_id), tenant_id=tenant_id)
    if limits.per_tenant != _set_at(row.key).per_tenant:
        viewer.require(Permission.MANAGE_TENANTS, what="the limit of the tenant")
    return _set(viewer, row, limits, name=name)


@transaction.atomic
def set_member_limit(*, viewer: Viewer, member: Membership, per_person: int | None) -> JobLimits:
    """Set the limit of one member.

    Raises:
        NotFoundError, ForbiddenError: the viewer may not set this limit.
        InvalidError: the limit is not valid.
    """
    viewer.require(Permission.SET_CAPS, member.tenant_id, what="the member's limit")
    row = JobLimit(
        key=member_key(member.tenant_id, member.user_id),
        tenant_id=member.tenant_id,
        user_id=member.user_id,
    )
    name = f"{member.user.username} in {member.tenant.name}"
    return _set(viewer, row, JobLimits(per_person=per_person), name=name)


def _set(viewer: Viewer, row: JobLimit, limits: JobLimits, *, name: str) -> JobLimits:
    InvalidError.raise_if(
        FieldError(
            field=field,
            value=value,
            message=sentence("not-job-limit"),
            remedy=sentence("give-job-limit", most=format(MOST, ",")),
        )
        for field, value in (("per_person", limits.per_person), ("per_tenant", limits.per_tenant))
        if value is not None and not 1 <= value <= MOST
    )
    wanted = {"per_person": limits.per_person, "per_tenant": limits.per_tenant}
    known = _set_at(row.key)
    before, after = changed(
        {"per_person": known.per_person, "per_tenant": known.per_tenant}, wanted
    )
    if after:
        defaults = {**wanted, "tenant_id": row.tenant_id, "user_id": row.user_id}
        stored, _ = JobLimit.objects.update_or_create(key=row.key, defaults=defaults)
        record(
            actor=viewer,
            action="job_limit.update",
            obj=stored,
            object_name=name,
            before=before,
            after=after,
            tenant=row.tenant_id,
        )
    return limits


def _set_at(key: str) -> JobLimits:
    row = JobLimit.objects.filter(key=key).first()
    return JobLimits(per_person=row.per_person, per_tenant=row.per_tenant) if row else JobLimits()


def _require(
    tenant_id: int, user_id: int | None, *, whose: str, most: int, new: int, newest: int
) -> None:
    key = (tenant_id, user_id)
    bound = bounds.at_most(key, newest)
    if bound is not None and bound + new <= most:
        return
    live = _count(tenant_id, user_id)
    # A rollback would remove the jobs of this transaction, and their IDs would be reused.
    transaction.on_commit(partial(bounds.keep, key, live, newest))
    if live + new > most:
        is_person = user_id is not None
        raise JobLimitError(
            sentence(
                "too-many-live-jobs-of-person" if is_person else "too-many-live-jobs-of-tenant",
                name=whose,
                n=live,
                live=f"{live:,}",
                new=f"{new:,}",
                most=f"{most:,}",
            ),
            field="",
            value=live + new,
            remedy=sentence("stop-jobs-or-raise-limit"),
        )


def _in_force(tenant_id: int, user_id: int | None) -> tuple[JobLimits, int]:
    """Return the narrowest limit of each kind (None if unset), and the newest job ID."""
    keys = (member_key(tenant_id, user_id), tenant_key(tenant_id), CLUSTER)
    with transaction.get_connection().cursor() as cursor:
        cursor.execute(_LIMITS_AND_NEWEST, keys)
        rows = cursor.fetchall()
    found = {key: (person, tenant) for _, key, person, tenant in rows}
    ordered = [found[key] for key in keys if key in found]
    limits = JobLimits(
        per_person=next((person for person, _ in ordered if person), None),
        per_tenant=next((tenant for _, tenant in ordered if tenant), None),
    )
    return limits, int(rows[0][0] or 0)


def _count(tenant_id: int, user_id: int | None) -> int:
    rows = Job.objects.unscoped().live().filter(tenant_id=tenant_id)
    return (rows if user_id is None else rows.filter(owner_id=user_id)).count()


def _lock_tenants(tenant_ids: Sequence[int]) -> None:
    connection = transaction.get_connection()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for tenant_id in tenant_ids:
                cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK, tenant_id])
