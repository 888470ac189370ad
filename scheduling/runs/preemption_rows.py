"""Receipts of preemptions: who had to leave, for whom, by which rule, and what it cost."""

from django.db import models

from scheduling.enums import PreemptionCause, one_of
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt


class Preemption(models.Model):
    """An attempt was asked to leave although its job was not to end.

    ``by`` names what asked where that was no round. ``acknowledged_at`` is when the job said that
    it had heard; ``checkpoint_*`` is the last that it saved. ``forced``: it was killed when its
    grace period was over. ``lost_steps`` is None where the job tells no steps; both are None until
    the attempt has ended.
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
        indexes = [models.Index(fields=["job", "asked_at"], name="preemption_by_job")]

    def __str__(self) -> str:
        return f"{self.cause} of attempt {self.attempt_id}"
