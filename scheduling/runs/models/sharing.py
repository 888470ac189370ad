"""Rows of device sharing: states of coordinators, their history, and measured pairs."""

from typing import Final

from django.db import models
from django.db.models import Q

from scheduling.clusters.models.nodes import Device
from scheduling.core.sharing.pairs import LONGEST_APPLICATION, PairRecord
from scheduling.jobs.models import Job
from scheduling.runs.models.attempts import Member


class SharedDevice(models.Model):
    """State of the coordinator of a device with guests, from the telemetry of its node.

    Seconds, bytes and shares from 0 to 1; None if the node does not know them. ``loss`` is the
    share of its own pace that the holder loses, with its 95 % interval. ``open`` is the share of
    the time in which guests may run. ``delay_seconds`` and ``closings`` count since the start of
    the holder.
    """

    device = models.OneToOneField(
        Device, on_delete=models.CASCADE, primary_key=True, related_name="shared"
    )
    holder = models.ForeignKey(Member, on_delete=models.CASCADE, related_name="+", db_index=False)
    at = models.DateTimeField()
    baseline = models.FloatField(null=True)
    loss = models.FloatField(null=True)
    loss_low = models.FloatField(null=True)
    loss_high = models.FloatField(null=True)
    open = models.FloatField(null=True)
    account = models.FloatField(null=True)
    reserve = models.FloatField(null=True)
    closings = models.PositiveIntegerField(default=0)
    delay_seconds = models.FloatField(default=0)
    memory_free = models.PositiveBigIntegerField(null=True)
    guests = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"guests of device {self.device_id}"


class SharedMinute(models.Model):
    """The last state of a shared device in one minute, for the history of its holder.

    The rows of a device are a ring: ``place`` is the number of the minute modulo the length of the
    ring, so that they cannot grow. ``delay_seconds`` and ``closings`` count since the start of the
    holder. ``limit`` is the loss that the holder allows; None in old rows. ``peers`` is the number
    of equals among the guests, ``suspended`` that of the jobs that wait for their turn, with the
    holder, and ``duty`` the share of the time in which the only other job works.
    """

    RING: Final = 1440
    """Minutes in the history of a device: one day."""

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="+", db_index=False)
    place = models.PositiveSmallIntegerField()
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+", db_index=False)
    minute = models.DateTimeField()
    guests = models.PositiveSmallIntegerField()
    frozen = models.PositiveSmallIntegerField()
    peers = models.PositiveSmallIntegerField(default=0, db_default=0)
    suspended = models.PositiveSmallIntegerField(default=0, db_default=0)
    limit = models.FloatField(null=True)
    duty = models.FloatField(null=True)
    baseline = models.FloatField(null=True)
    loss = models.FloatField(null=True)
    loss_low = models.FloatField(null=True)
    loss_high = models.FloatField(null=True)
    open = models.FloatField(null=True)
    delay_seconds = models.FloatField(default=0)
    closings = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["device", "place"], name="shared_minute_one_per_place"
            ),
        ]
        indexes = [
            models.Index(fields=["job", "minute"], name="shared_minute_by_job"),
            models.Index(fields=["minute"], name="shared_minute_by_age"),
        ]

    def __str__(self) -> str:
        return f"device {self.device_id} at {self.minute}"


class GuestDelay(models.Model):
    """Seconds by which guests have delayed a holder on one day (UTC)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+", db_index=False)
    day = models.DateField()
    is_gpu = models.BooleanField()
    seconds = models.FloatField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["day", "job", "is_gpu"], name="guest_delay_one_per_day"
            ),
            models.CheckConstraint(condition=Q(seconds__gte=0), name="guest_delay_counts_up"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id} on {self.day}"


class PairPace(models.Model):
    """Measured paces of the jobs of two applications that share a device of one type.

    Paces are means over observations, as fractions of the paces alone; at most one observation a
    minute is added. Applications are those of ``core.sharing.pairs.application_of``: they contain
    the tenant, and no page or address shows them.
    """

    holder = models.CharField(max_length=LONGEST_APPLICATION)
    guest = models.CharField(max_length=LONGEST_APPLICATION)
    device_type = models.CharField(max_length=100)
    holder_pace = models.FloatField()
    guest_pace = models.FloatField()
    observations = models.FloatField()
    at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["holder", "guest", "device_type"], name="pair_pace_one_per_pair"
            ),
            models.CheckConstraint(
                condition=Q(holder_pace__range=(0.0, 1.0), guest_pace__range=(0.0, 1.0)),
                name="pair_pace_is_a_fraction",
            ),
        )

    def __str__(self) -> str:
        return f"{self.holder} with {self.guest} on {self.device_type}"

    @property
    def record(self) -> PairRecord:
        """The stored means."""
        return PairRecord(
            holder=self.holder_pace, guest=self.guest_pace, observations=self.observations
        )
