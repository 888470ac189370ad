"""Rows of start estimates: starts of waiting jobs, remedies, and past estimates."""

from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.jobs.models import Job


class StartEstimate(models.Model):
    """The newest start estimate of one waiting job; times are empty if unknown.

    Each of ``steps`` would let it start now; without any, ``proof`` has the reason for even
    its smallest demand.

    ``round_number`` is the round after which the start was estimated and ``sought`` the one after
    which steps were sought, each 0 while that is pending. The steps hold for the reason code
    ``sought_for``. All of it is valid only for the job with the same number of ``amendments``.

    ``basis`` is a ``Basis``, or empty where there is no range. ``opens_at``: the job cannot start
    earlier. ``unreliable``: a range was found, but is too wide to be shown; ``unlimited`` are then
    the running jobs without a time limit.
    """

    job = models.OneToOneField(
        Job, primary_key=True, on_delete=models.CASCADE, related_name="estimate"
    )
    round_number = models.PositiveBigIntegerField()
    made_at = models.DateTimeField()
    p10 = models.DateTimeField(null=True)
    p50 = models.DateTimeField(null=True)
    p90 = models.DateTimeField(null=True)
    basis = models.CharField(max_length=12, blank=True)
    opens_at = models.DateTimeField(null=True)
    unreliable = models.BooleanField(default=False)
    unlimited = models.JSONField(default=list)
    steps = models.JSONField(default=list)
    proof = models.JSONField(default=list)
    sought = models.PositiveBigIntegerField(default=0)
    sought_for = models.CharField(max_length=32, blank=True)
    amendments = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"start of {self.job_id}"


class EstimateRecord(models.Model):
    """A past estimate and the actual wait; all spans in seconds from ``made_at``.

    ``raw_*`` came from the futures, ``p*`` are the estimate, which was ``shown`` unless it was too
    wide. ``wait`` is known once the job has devices; the record of a job that ended without is
    closed without.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="estimate_records")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="estimate_records"
    )
    round_number = models.PositiveBigIntegerField()
    made_at = models.DateTimeField()
    waited = models.FloatField()
    raw_p10 = models.FloatField()
    raw_p50 = models.FloatField()
    raw_p90 = models.FloatField()
    p10 = models.FloatField()
    p50 = models.FloatField()
    p90 = models.FloatField()
    shown = models.BooleanField(default=True)
    wait = models.FloatField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["virtual_cluster", "-made_at"], name="estimate_newest"),
            models.Index(fields=["job"], condition=Q(closed_at=None), name="estimate_open"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "round_number"], name="estimate_once"),
        ]

    def __str__(self) -> str:
        return f"estimate of {self.job_id} in round {self.round_number}"
