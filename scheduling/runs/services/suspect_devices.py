"""Marks of devices on which unusually many jobs of several tenants failed."""

from datetime import datetime

from scheduling.clusters.models import Device
from scheduling.runs.queries.device_failures import suspect_devices


def mark_suspect_devices(*, now: datetime) -> int:
    """Mark the devices that are suspect now, and clear other marks; return their number.

    A mark that remains keeps its time.
    """
    found = suspect_devices(now=now)
    Device.objects.exclude(suspect_since=None).exclude(pk__in=found).update(suspect_since=None)
    Device.objects.filter(pk__in=found, suspect_since=None).update(suspect_since=now)
    return len(found)
