"""The cluster's shape, in versions of which the newest is in force."""

from django.conf import settings
from django.db import models
from django.db.models import Q


class Topology(models.Model):
    """One version of the physical cluster: cell types and cells, as canonical JSON.

    Versions are appended, never changed. ``version`` is unique, so that of two editors who started
    from the same version one is refused.
    """

    version = models.PositiveIntegerField()
    spec = models.JSONField()
    reason = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["version"], name="topology_one_per_version"),
            models.CheckConstraint(
                condition=Q(version__gt=0), name="topology_version_is_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"topology {self.version}"
