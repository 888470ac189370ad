"""Rows of virtual clusters, their guarantees, priority classes and import rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduling.core.sharing.hosts import MOST_GUESTS, Consent
from tenants.models import Membership, Tenant
from tenants.tenancy import TenantManager
from tessera.isolation import LEVELS, NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class VcValues:
    """The editable columns of a virtual cluster with their defaults.

    Edits, forms, REST, pages and the audit use this value. It does not contain name, tenant and
    guarantee.

    Attributes:
        policy: name of the policy that orders the jobs.
        policy_args: parameters of the policy.
        shadows: shadow policies, each with ``policy`` and ``policy_args``, and with ``until`` (ISO
            8601) if it ends.
        max_devices_per_user: maximum number of devices of one person; None for no limit.
        max_opportunistic_devices: maximum number of borrowed devices; None for no limit.
        least_isolation: minimum isolation level of the nodes that run its jobs.
        guests_default: guests on the devices of its jobs that do not set it (``Consent``).
        max_guests: maximum number of guests on one device of its jobs, 0 to 3.
        note: free text.
    """

    policy: str = "fifo"
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    shadows: Sequence[Mapping[str, Any]] = ()
    max_devices_per_user: int | None = None
    max_opportunistic_devices: int | None = None
    least_isolation: str = NONE
    guests_default: str = Consent.NONE.value
    max_guests: int = 1
    note: str = ""

    @classmethod
    def of(cls, row: "VirtualCluster") -> "VcValues":
        """Return the stored values of ``row``."""
        return VcValues(**{name: getattr(row, name) for name in VC_COLUMNS})

    def columns(self) -> dict[str, Any]:
        """Return the values by column, in the form that the database and the audit store."""
        return {
            **{name: getattr(self, name) for name in VC_COLUMNS},
            "policy_args": dict(self.policy_args),
            "shadows": [
                {
                    "policy": shadow["policy"],
                    "policy_args": dict(shadow.get("policy_args", {})),
                    **({"until": shadow["until"]} if shadow.get("until") else {}),
                }
                for shadow in self.shadows
            ],
        }


def active_shadows(shadows: Sequence[Mapping[str, Any]], now: datetime) -> list[Mapping[str, Any]]:
    """Return the shadow policies that have not ended."""
    return [
        shadow
        for shadow in shadows
        if not shadow.get("until") or datetime.fromisoformat(shadow["until"]) > now
    ]


VC_COLUMNS: Final = tuple(known.name for known in fields(VcValues))


class VirtualCluster(models.Model):
    """A tenant's share with its policy and limits; :class:`VcValues` describes its columns.

    ``policy_fault`` is the error because of which FIFO has replaced the policy since
    ``policy_fault_at``; it is empty while the policy itself decides.
    """

    name = models.CharField(max_length=63, unique=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="virtual_clusters")
    policy = models.CharField(max_length=40, default="fifo")
    policy_args = models.JSONField(default=dict, blank=True)
    policy_state = models.JSONField(default=dict, blank=True)
    policy_fault = models.CharField(max_length=500, blank=True)
    policy_fault_at = models.DateTimeField(null=True, blank=True)
    shadows = models.JSONField(default=list, blank=True)
    max_devices_per_user = models.PositiveIntegerField(null=True, blank=True)
    max_opportunistic_devices = models.PositiveIntegerField(null=True, blank=True)
    least_isolation = models.CharField(max_length=16, default=NONE)
    guests_default = models.CharField(max_length=16, default=Consent.NONE.value)
    max_guests = models.PositiveSmallIntegerField(default=1)
    note = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField()
    archived_at = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1)

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(max_devices_per_user=None) | Q(max_devices_per_user__gt=0),
                name="vc_user_cap_is_positive",
            ),
            models.CheckConstraint(
                condition=Q(least_isolation__in=LEVELS), name="vc_least_isolation_is_known"
            ),
            models.CheckConstraint(
                condition=Q(guests_default__in=[consent.value for consent in Consent]),
                name="vc_guests_default_is_known",
            ),
            models.CheckConstraint(
                condition=Q(max_guests__lte=MOST_GUESTS), name="vc_max_guests_is_in_range"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ClusterRules(models.Model):
    """Rules of the whole cluster that admins set; at most one row.

    ``least_isolation`` is the minimum isolation level of nodes that take jobs; a virtual cluster
    may require a higher level. ``condition_actions`` has the actions for conditions of GPUs that
    differ from the defaults, by code (``tessera.hardware``). ``canary`` has the settings of canary
    jobs that differ from the defaults (``scheduling.core.canaries``). If ``sharing`` is false, no
    device takes guests, whatever jobs and virtual clusters allow.
    """

    least_isolation = models.CharField(max_length=16, default=NONE)
    condition_actions = models.JSONField(default=dict, blank=True)
    canary = models.JSONField(default=dict, blank=True, db_default={})
    sharing = models.BooleanField(default=False)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="cluster_rules_are_one_row"),
            models.CheckConstraint(
                condition=Q(least_isolation__in=LEVELS), name="cluster_least_isolation_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"minimum isolation level {self.least_isolation}"


class VcQuota(models.Model):
    """A guarantee of ``count`` cells of type ``level`` in ``chain`` to a virtual cluster."""

    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="quotas"
    )
    chain = models.CharField(max_length=100)
    level = models.CharField(max_length=100)
    count = models.PositiveIntegerField()

    class Meta:
        ordering = ["virtual_cluster_id", "chain", "level"]
        constraints = [
            models.CheckConstraint(condition=Q(count__gt=0), name="vc_quota_is_positive"),
            models.UniqueConstraint(
                fields=["virtual_cluster", "chain", "level"], name="vc_quota_one_per_level"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.count} × {self.level} of {self.chain}"


class PinnedCell(models.Model):
    """One physical cell that a virtual cluster owns by its address."""

    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="pinned_cells"
    )
    name = models.CharField(max_length=63)
    address = models.CharField(max_length=255, unique=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["virtual_cluster", "name"], name="pinned_cell_one_name"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} = {self.address}"


class VcLimit(models.Model):
    """A virtual cluster that a limited tenant member may use; one row for each allowed one."""

    membership = models.ForeignKey(Membership, on_delete=models.CASCADE, related_name="vc_limits")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="limits"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["membership", "virtual_cluster"], name="vc_limit_one_per_member"
            ),
        ]

    def __str__(self) -> str:
        return f"membership {self.membership_id} in {self.virtual_cluster_id}"


class PriorityClass(models.Model):
    """A name for a priority; -1 is opportunistic, 0 to 1000 are guaranteed."""

    name = models.CharField(max_length=40, unique=True)
    value = models.SmallIntegerField()
    note = models.CharField(max_length=200, blank=True)
    is_default = models.BooleanField(default=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["-value", "name"]
        verbose_name_plural = "priority classes"
        constraints = [
            models.CheckConstraint(
                condition=Q(value__gte=-1, value__lte=1000), name="priority_class_is_in_range"
            ),
            models.UniqueConstraint(
                fields=["is_default"],
                condition=Q(is_default=True),
                name="priority_class_one_default",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.value})"


class ImportRule(models.Model):
    """A mapping of a partition, account, fleet or other foreign name to names of Tessera.

    The importers define the kinds (``scheduling.compat.formats.RULE_KINDS``), so a new importer
    needs no migration.
    """

    kind = models.CharField(max_length=20)
    name = models.CharField(max_length=100)
    virtual_cluster = models.ForeignKey(
        VirtualCluster, null=True, on_delete=models.CASCADE, related_name="+"
    )
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="+")
    priority_class = models.ForeignKey(
        PriorityClass, null=True, on_delete=models.CASCADE, related_name="+"
    )
    is_opportunistic = models.BooleanField(default=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["kind", "name"]
        constraints = [
            models.UniqueConstraint(fields=["kind", "name"], name="import_rule_one_per_name"),
            models.CheckConstraint(
                condition=~Q(kind=""),
                name="import_rule_kind_is_given",
            ),
            models.CheckConstraint(
                condition=Q(virtual_cluster__isnull=False)
                | Q(tenant__isnull=False)
                | Q(priority_class__isnull=False)
                | Q(is_opportunistic=True),
                name="import_rule_says_something",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
