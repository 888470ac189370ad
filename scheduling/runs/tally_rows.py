"""Numbers that only grow, also when what they count is forgotten."""

from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster


class EvictionTally(models.Model):
    """How often jobs of a virtual cluster have lost their devices, by reason."""

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
    """How many jobs of a virtual cluster waited so long for their first start.

    ``wait_class`` counts through ``core.waits.BOUNDS``; ``seconds`` is the sum of these waits.
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
