"""Rows of scheduling rounds, and the order in which the newest round tried jobs."""

from typing import Final

from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster


class Round(models.Model):
    """One pass of the scheduler: snapshot, decision, commit.

    The unique number prevents a second scheduler from committing the same round. ``snapshot_path``
    is relative to the data directory, and empty for a round without changes.
    """

    number = models.PositiveBigIntegerField(unique=True)
    started_at = models.DateTimeField()
    committed_at = models.DateTimeField()
    duration_ms = models.FloatField()
    cause = models.CharField(max_length=20, blank=True)
    policies = models.JSONField(default=list)
    topology_version = models.PositiveIntegerField(default=0)
    queued = models.PositiveIntegerField(default=0)
    running = models.PositiveIntegerField(default=0)
    started = models.PositiveIntegerField(default=0)
    preempted = models.PositiveIntegerField(default=0)
    dropped = models.PositiveIntegerField(default=0)
    fallbacks = models.JSONField(default=list)
    timings_ms = models.JSONField(default=dict)
    snapshot_sha256 = models.CharField(max_length=64, blank=True)
    snapshot_path = models.CharField(max_length=200, blank=True)
    snapshot_bytes = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.CheckConstraint(condition=Q(number__gt=0), name="round_number_is_positive"),
        ]

    def __str__(self) -> str:
        return f"round {self.number}"


class QueueOrder(models.Model):
    """The waiting jobs of a virtual cluster in the order in which the newest round tried them.

    The lists omit jobs that the round did not try: jobs that may not start yet, and jobs to which
    the policy gives no devices. Two rounds with equal ``digest`` have the same order.
    """

    DIGEST_LENGTH: Final = 32

    virtual_cluster = models.OneToOneField(
        VirtualCluster, primary_key=True, on_delete=models.CASCADE, related_name="queue_order"
    )
    guaranteed = models.JSONField(default=list)
    opportunistic = models.JSONField(default=list)
    digest = models.CharField(max_length=DIGEST_LENGTH)

    class Meta:
        db_table = "scheduling_waitingline"

    def __str__(self) -> str:
        return f"queue order of {self.virtual_cluster_id}"
