"""What names of other systems' queues and accounts stand for here."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import PriorityClass, VirtualCluster
from tenants.models import Tenant
from tenants.tenancy import TenantManager


class ImportRule(models.Model):
    """A partition, account, quality of service, fleet or place to run, and its counterparts.

    The kinds of names are those of the importers (``scheduling.compat.formats.RULE_KINDS``), so
    that a new importer needs no migration.
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
