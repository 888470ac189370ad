"""Rows of start estimates, remedies, and past estimates."""

from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.document_field import DocumentField
from scheduling.jobs.models import Job


class StartEstimate(models.Model):
    """The newest start estimate of one waiting job; times are null if unknown.

    Each of ``steps`` lets the job start now; if there is none, ``proof`` has the reason for even
    its smallest demand.

    ``round_number`` is the round of the estimate, and ``sought`` the round of the search for
    steps; 0 means pending. The steps belong to the reason code ``sought_for``. The row is valid
    only while the job has the same number of ``amendments``.

    ``basis`` is a ``Basis``, or empty if there is no range; with ``few`` there is no range either.
    ``opens_at`` is the earliest possible start. ``unreliable`` marks a range that is too wide to
    be shown; ``unlimited`` then has the running jobs without a time limit that cause it.
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
    unlimited = DocumentField(default=list)
    steps = DocumentField(default=list)
    proof = models.JSONField(default=list)
    sought = models.PositiveBigIntegerField(default=0)
    sought_for = models.CharField(max_length=32, blank=True)
    amendments = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"start of {self.job_id}"


class EstimateRecord(models.Model):
    """A past estimate and the actual wait; all spans are in seconds from ``made_at``.

    ``raw_*`` are the quantiles of the simulated futures, and ``p*`` of the calibrated
    estimate. ``shown`` is false if the estimate was too wide. ``wait`` is set when the job gets
    devices. If the job ends without devices, the record is closed without ``wait``.
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


class FragmentationForecast(models.Model):
    """The newest forecast of stranded devices, in one row.

    ``result`` is the document of ``core.forecast.fragmentation.FragmentationForecast``, and
    ``moves`` is a list of documents of ``core.forecast.moves.Proposal``.
    """

    round_number = models.PositiveBigIntegerField()
    made_at = models.DateTimeField()
    result = models.JSONField(default=dict)
    moves = models.JSONField(default=list)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="fragmentation_forecast_is_one_row"),
        ]

    def __str__(self) -> str:
        return f"forecast of stranded devices at round {self.round_number}"
