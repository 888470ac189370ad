"""Daily and monthly sums of device use, so that old leases are not summed again."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from tenants.models import Tenant
from tenants.tenancy import TenantManager


class UsageRow(models.Model):
    """Device-seconds of one owner, split by guarantee and loss.

    ``guaranteed`` plus ``borrowed`` is the total. ``lost_preempted`` and ``lost_failed`` are the
    parts between a run's last checkpoint and its preemption or failure. ``guest`` are seconds as a
    guest of a device, which are not charged. ``delay`` are seconds by which guests have delayed
    the owner's jobs on their devices. ``cpu`` are CPUs times seconds of jobs without
    devices. ``is_gpu`` is false for CPU slots, and for these jobs.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    is_gpu = models.BooleanField()
    guaranteed = models.FloatField(default=0.0)
    borrowed = models.FloatField(default=0.0)
    lost_preempted = models.FloatField(default=0.0)
    lost_failed = models.FloatField(default=0.0)
    guest = models.FloatField(default=0.0)
    delay = models.FloatField(default=0.0)
    cpu = models.FloatField(default=0.0, db_default=0.0)

    objects = TenantManager("tenant_id")

    class Meta:
        abstract = True


class UsageDay(UsageRow):
    """Use by one person in a virtual cluster on one day (UTC)."""

    day = models.DateField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["day", "virtual_cluster", "owner", "is_gpu"], name="usage_day_once"
            ),
            models.CheckConstraint(
                condition=Q(guaranteed__gte=0, borrowed__gte=0), name="usage_day_is_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.owner_id} in {self.virtual_cluster_id} on {self.day}"


class UsageJob(UsageRow):
    """Use by one job on one day; it outlives the job's row."""

    day = models.DateField()
    job = models.BigIntegerField()
    name = models.CharField(max_length=63)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["day", "job", "is_gpu"], name="usage_job_once"),
        ]

    def __str__(self) -> str:
        return f"job {self.job} on {self.day}"


class UsageMonth(models.Model):
    """A closed month, whose rows do not change any more.

    ``sha256`` is the hash of its rows as text, which reveals a change.
    """

    month = models.DateField(unique=True)
    closed_at = models.DateTimeField()
    sha256 = models.CharField(max_length=64)
    rows = models.PositiveIntegerField()

    class Meta:
        ordering = ["-month"]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"


class UsageMark(models.Model):
    """The time until which use has been summed up; the table has one row."""

    name = models.CharField(max_length=20, unique=True)
    summed_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} until {self.summed_until}"


class FleetInterval(models.Model):
    """Totals of the fleet in the span that begins at ``at`` (``core.fleet_history``).

    ``until`` is the time of the newest of ``samples`` samples; jobs and preemptions before it are
    included. Each span length has its own rows, so that no reader sums up shorter spans.
    """

    span_seconds = models.PositiveIntegerField()
    at = models.DateTimeField()
    until = models.DateTimeField()
    samples = models.PositiveIntegerField(default=0)
    nodes = models.JSONField(default=list)
    virtual_clusters = models.JSONField(default=dict)
    waits = models.JSONField(default=dict)
    preemptions = models.JSONField(default=list)
    free = models.JSONField(default=list)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["span_seconds", "at"], name="fleet_interval_once"),
        ]

    def __str__(self) -> str:
        return f"fleet in {self.span_seconds} s from {self.at}"
