"""Rows of the aliases of device types."""

from django.db import models


class DeviceAlias(models.Model):
    """A name for a device type in documents of jobs, in lower case.

    An alias may name several types, and a type may be removed from the cluster and added again.
    """

    alias = models.CharField(max_length=60)
    device_type = models.CharField(max_length=100)
    created_by_id = models.BigIntegerField(null=True)

    class Meta:
        ordering = ["alias", "device_type"]
        constraints = [
            models.UniqueConstraint(
                fields=["alias", "device_type"], name="device_alias_one_per_type"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.alias} = {self.device_type}"
