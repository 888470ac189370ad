"""Preemption receipts, and counts of evictions and waits."""

from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.enums import PreemptionCause, one_of
from scheduling.jobs.models import Job
from scheduling.runs.models.attempts import Attempt


class Preemption(models.Model):
    """A request to an attempt to leave its devices although its job continues.

    ``by`` names the requester if it was not a round. ``acknowledged_at`` is the time of the job's
    acknowledgement, and ``checkpoint_*`` describe its last checkpoint. ``forced`` is true if the
    grace period ended before the job did. ``lost_steps`` is None if the job reports no steps. It
    and the lost seconds are None until the attempt has ended.
    """

    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, related_name="preemption")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="preemptions")
    for_job = models.ForeignKey(Job, on_delete=models.SET_NULL, null=True, related_name="+")
    cause = models.CharField(max_length=16, choices=PreemptionCause)
    by = models.CharField(max_length=200, blank=True)
    rule = models.CharField(max_length=300)
    grace_seconds = models.PositiveIntegerField()
    asked_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True)
    checkpoint_step = models.BigIntegerField(null=True)
    checkpoint_sha256 = models.CharField(max_length=64, blank=True)
    checkpoint_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)
    forced = models.BooleanField(default=False)
    lost_steps = models.BigIntegerField(null=True)
    lost_seconds = models.FloatField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=one_of("cause", PreemptionCause), name="preemption_cause_is_known"
            ),
        ]
        indexes = [
            models.Index(fields=["job", "asked_at"], name="preemption_by_job"),
            models.Index(fields=["asked_at"], name="preemption_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.cause} of attempt {self.attempt_id}"


class EvictionTally(models.Model):
    """Number of evictions of jobs of a virtual cluster, by reason."""

    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="evictions"
    )
    reason = models.CharField(max_length=16)
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["virtual_cluster", "reason"], name="eviction_tally_one_per_reason"
            ),
            models.CheckConstraint(condition=Q(count__gte=0), name="eviction_tally_counts_up"),
        ]

    def __str__(self) -> str:
        return f"{self.count} of virtual cluster {self.virtual_cluster_id}: {self.reason}"


class WaitTally(models.Model):
    """Number of jobs of a virtual cluster by the class of their wait for the first start.

    ``wait_class`` is an index of ``core.waits.BOUNDS``; ``seconds`` is the sum of these waits.
    """

    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="waits", db_index=False
    )
    wait_class = models.PositiveSmallIntegerField()
    count = models.PositiveBigIntegerField(default=0)
    seconds = models.FloatField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["virtual_cluster", "wait_class"], name="wait_tally_one_per_class"
            ),
            models.CheckConstraint(
                condition=Q(count__gte=0, seconds__gte=0), name="wait_tally_counts_up"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.count} of virtual cluster {self.virtual_cluster_id}: {self.wait_class}"
