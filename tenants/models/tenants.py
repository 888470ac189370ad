"""Rows of tenants, the roles of their members, and their use of closed months."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from tenants.roles import Permission, Role
from tenants.tenancy import TenantManager

_ROLES = [(role.value, role.value.capitalize()) for role in Role]


class Tenant(models.Model):
    """A team with a share of the cluster.

    ``position`` is the order of creation and never changes: it determines the team's colour.
    ``version`` rises with every edit of this row, ``members_version`` with every edit of the list
    of members; both detect concurrent edits. ``uid`` is the Unix user id of the team's jobs on all
    nodes. It is never reused, even if the team is archived.
    """

    name = models.SlugField(max_length=40, unique=True)
    display_name = models.CharField(max_length=80)
    note = models.TextField(max_length=2000, blank=True, default="")
    position = models.PositiveIntegerField(unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    archived_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)
    members_version = models.PositiveIntegerField(default=1)
    uid = models.PositiveIntegerField(unique=True, null=True, blank=True, editable=False)

    objects: ClassVar["TenantManager[Tenant]"] = TenantManager("id", Permission.VIEW_TENANT)

    class Meta:
        ordering = ("position",)
        constraints: ClassVar = [
            models.CheckConstraint(condition=~Q(name=""), name="tenant_name_not_empty"),
            models.CheckConstraint(
                condition=~Q(display_name=""), name="tenant_display_name_not_empty"
            ),
            models.CheckConstraint(condition=Q(version__gte=1), name="tenant_version_positive"),
            models.CheckConstraint(
                condition=Q(members_version__gte=1), name="tenant_members_version_positive"
            ),
            models.CheckConstraint(
                condition=Q(archived_at=None) | Q(archived_at__gte=models.F("created_at")),
                name="tenant_archived_after_created",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_archived(self) -> bool:
        """Return whether the tenant accepts no new work."""
        return self.archived_at is not None


class UidFloor(models.Model):
    """One row: Unix user ids up to ``uid`` are not assigned to new tenants.

    A restore raises it above the ids of tenants that are not in the backup.
    """

    uid = models.PositiveIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(id=1), name="uidfloor_is_one_row"),
        ]

    def __str__(self) -> str:
        return f"user ids above {self.uid}"


class Membership(models.Model):
    """One person in one tenant; ``max_devices`` caps the devices of that person's jobs."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships"
    )
    role = models.CharField(max_length=6, choices=_ROLES, default=Role.MEMBER.value)
    max_devices = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    version = models.PositiveIntegerField(default=1)

    objects: ClassVar["TenantManager[Membership]"] = TenantManager(
        "tenant_id", Permission.VIEW_MEMBERS
    )

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["tenant", "user"], name="membership_one_per_tenant_and_user"
            ),
            models.CheckConstraint(
                condition=Q(role__in=[role.value for role in Role]), name="membership_role_known"
            ),
            models.CheckConstraint(
                condition=Q(max_devices=None) | Q(max_devices__gt=0),
                name="membership_max_devices_positive",
            ),
            models.CheckConstraint(
                condition=Q(version__gte=1), name="membership_version_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.tenant_id} as {self.role}"


class UsedSoFar(models.Model):
    """Device seconds of a person's jobs in a tenant in all closed months.

    Computed from daily sums when a month is closed. All rows refer to the same instant, the end of
    the newest closed month.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    is_gpu = models.BooleanField()
    seconds = models.FloatField()
    until = models.DateTimeField()

    objects = TenantManager("tenant_id")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "user", "is_gpu"], name="used_so_far_one_row_each"
            ),
            models.CheckConstraint(
                condition=models.Q(seconds__gte=0), name="used_so_far_is_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"user {self.user_id} in tenant {self.tenant_id}: {self.seconds:.0f} s"
