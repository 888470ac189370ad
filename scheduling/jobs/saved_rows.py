"""What people keep for themselves and their tenants: views of the list, templates, sweeps."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from tenants.models import Tenant
from tenants.tenancy import TenantManager


class SavedView(models.Model):
    """Filters of the list of jobs under a name of somebody's own."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views"
    )
    name = models.CharField(max_length=40)
    query = models.CharField(max_length=1000, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="saved_view_one_per_name"),
        ]

    def __str__(self) -> str:
        return self.name


class JobTemplate(models.Model):
    """A job's document to begin with; for its owner, or for all members of ``tenant``."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="job_templates"
    )
    tenant = models.ForeignKey(
        Tenant, null=True, on_delete=models.CASCADE, related_name="job_templates"
    )
    name = models.CharField(max_length=63)
    note = models.CharField(max_length=200, blank=True)
    text = models.TextField()
    created_at = models.DateTimeField()

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "name"],
                condition=Q(tenant=None),
                name="job_template_one_per_owner",
            ),
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(tenant__isnull=False),
                name="job_template_one_per_tenant",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Sweep(models.Model):
    """Jobs that were submitted together, one for each point of a grid.

    The jobs lie between ``first_job`` and ``last_job`` and have the label ``sweep`` with ``label``
    as its value. With ``max_parallel`` the others are held until it is their turn; ``is_open``
    while some are.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="sweeps")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.PROTECT, related_name="sweeps"
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sweeps"
    )
    name = models.CharField(max_length=63)
    label = models.CharField(max_length=63)
    parameters = models.JSONField()
    max_parallel = models.PositiveIntegerField(null=True)
    jobs = models.PositiveIntegerField()
    first_job = models.BigIntegerField()
    last_job = models.BigIntegerField()
    is_open = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["is_open"], condition=Q(is_open=True), name="sweep_open"),
        ]

    def __str__(self) -> str:
        return f"sweep {self.pk} {self.name}"
