"""Audit rows, which are append-only."""

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from tenants.models.tenants import Tenant
from tenants.roles import Permission
from tenants.tenancy import TenantManager, TenantScopedQuerySet


class AppendOnlyError(RuntimeError):
    """Code tried to change or delete recorded rows."""

    def __init__(self) -> None:
        """Name the purpose of the table."""
        super().__init__("audit rows are append-only; prune_audit deletes old rows")


class AuditQuerySet(TenantScopedQuerySet["AuditEntry"]):
    """Allows reads and inserts; refuses updates and deletions."""

    def update(self, **kwargs: Any) -> NoReturn:
        """Raise: rows are append-only."""
        raise AppendOnlyError

    def delete(self) -> NoReturn:
        """Raise: rows are append-only."""
        raise AppendOnlyError

    def bulk_update(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: rows are append-only."""
        raise AppendOnlyError

    def _update(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnlyError

    def _raw_delete(self, using: str | None) -> NoReturn:
        raise AppendOnlyError


if TYPE_CHECKING:
    AuditManager = TenantManager["AuditEntry"]
else:
    AuditManager = TenantManager.from_queryset(AuditQuerySet, class_name="AuditManager")


class AuditEntry(models.Model):
    """One change: actor, time, object, and its fields before and after (secrets masked).

    People and tenants that appear here cannot be deleted, only deactivated and archived; triggers
    in the database refuse updates by any client, and deletes of rows that are not pruned.
    """

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    actor_name = models.CharField(max_length=150)
    token_prefix = models.CharField(max_length=8, blank=True, default="")
    action = models.CharField(max_length=64)
    object_type = models.CharField(max_length=64)
    object_id = models.CharField(max_length=64, blank=True, default="")
    object_name = models.CharField(max_length=200, blank=True, default="")
    # auditentry_by_tenant starts with this column; a separate index would slow down each write.
    tenant = models.ForeignKey(
        Tenant, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True, default="")
    message = models.CharField(max_length=1000, blank=True, default="")

    objects: ClassVar["AuditManager"] = AuditManager("tenant_id", Permission.READ_AUDIT)

    class Meta:
        verbose_name_plural = "audit entries"
        ordering = ("-id",)
        indexes: ClassVar = [
            models.Index(fields=["tenant", "-id"], name="auditentry_by_tenant"),
            models.Index(fields=["object_type", "object_id", "-id"], name="auditentry_by_object"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=~Q(action=""), name="auditentry_action_not_empty"),
            models.CheckConstraint(
                condition=~Q(actor_name=""), name="auditentry_actor_name_not_empty"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.actor_name}: {self.action} {self.object_type} {self.object_name}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Store a new row; refuse to store an existing one."""
        if not self._state.adding:
            raise AppendOnlyError
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: rows are append-only."""
        raise AppendOnlyError


class AuditLink(models.Model):
    """A link of the hash chain over audit rows (``tenants.audit_chain``); never changed."""

    position = models.BigIntegerField(primary_key=True)
    entry = models.OneToOneField(
        AuditEntry, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    hash = models.CharField(max_length=64)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(position__gt=0), name="auditlink_position_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.position}:{self.hash}"


class AuditAnchor(models.Model):
    """The start of the chain after rows from before ``before`` were pruned; never changed.

    ``position`` and ``hash`` are those of the last pruned link.
    """

    position = models.BigIntegerField(primary_key=True)
    hash = models.CharField(max_length=64)
    before = models.DateTimeField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(position__gt=0), name="auditanchor_position_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.position}:{self.hash}"
