"""Canary jobs of devices that return from quarantine."""

from django.db import models
from django.db.models import Q

from scheduling.clusters.models import Device
from scheduling.enums import CanaryResult, one_of
from scheduling.jobs.models import Job


class CanaryRun(models.Model):
    """A job of the system tenant that tests one device.

    ``requested_by`` is the name of the admin who requested it, and empty if the portal did. While
    ``ended_at`` is None, ``result`` is empty. ``figures`` has the numbers that the test reported.
    """

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="canaries")
    job = models.OneToOneField(Job, on_delete=models.SET_NULL, null=True, related_name="canary")
    requested_by = models.CharField(max_length=150, blank=True)
    requested_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    result = models.CharField(max_length=16, blank=True, choices=CanaryResult)
    cause = models.CharField(max_length=500, blank=True)
    figures = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["device"], condition=Q(ended_at=None), name="canary_one_open_per_device"
            ),
            models.CheckConstraint(
                condition=Q(ended_at=None, result="")
                | (Q(ended_at__isnull=False) & one_of("result", CanaryResult)),
                name="canary_result_is_that_of_an_ended_run",
            ),
        ]

    def __str__(self) -> str:
        return f"canary of {self.device_id}: {self.result or 'open'}"
