"""Rows of profiles of models, of parallel plans of attempts, and of measured links."""

from django.db import models
from django.db.models import Q

from scheduling.document_field import DocumentField
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt
from tenants.models import Tenant
from tenants.tenancy import TenantManager


class ModelProfile(models.Model):
    """The profile of a model on one device type, measured by a job of the same owner.

    ``fingerprint`` identifies the program with its batch (``core.round.parallel_plans``), and
    ``version`` the format of the document with the version of PyTorch. ``grids`` has the estimates
    of all grids, computed when the profile arrived. While ``measured_at`` is null, ``job``
    measures; after an end without a profile, the next job is submitted an hour later.
    """

    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, related_name="model_profiles", db_index=False
    )
    fingerprint = models.CharField(max_length=64)
    device_type = models.CharField(max_length=100)
    version = models.CharField(max_length=64, blank=True)
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="profiles")
    requested_at = models.DateTimeField()
    measured_at = models.DateTimeField(null=True)
    document = DocumentField(default=dict)
    grids = DocumentField(default=list)

    objects = TenantManager("tenant_id")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "fingerprint", "device_type"], name="model_profile_one_per_type"
            )
        ]

    def __str__(self) -> str:
        return f"profile {self.fingerprint[:12]} on {self.device_type}"


class AttemptPlan(models.Model):
    """The parallel plan of one attempt, with its predicted step time.

    ``plan_id`` is the ID within ``plan``, which is the document in ``TESSERA_JOB_PLAN``.
    ``predicted`` is in seconds per step; null without an estimate. ``source`` is the origin of the
    plan: ``profiled``, ``measured``, ``given`` or ``replicas``. Step time and end are in the rows
    of the attempt.
    """

    attempt = models.OneToOneField(
        Attempt, primary_key=True, on_delete=models.CASCADE, related_name="parallel"
    )
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+", db_index=False)
    fingerprint = models.CharField(max_length=64)
    device_type = models.CharField(max_length=100)
    plan_id = models.CharField(max_length=12)
    plan = DocumentField()
    predicted = models.FloatField(null=True)
    source = models.CharField(max_length=12)

    objects = TenantManager("tenant_id")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(predicted=None) | Q(predicted__gt=0), name="attempt_plan_predicts_time"
            )
        ]
        indexes = [
            models.Index(fields=["tenant", "fingerprint"], name="attempt_plan_by_fingerprint")
        ]

    def __str__(self) -> str:
        return f"plan {self.plan_id} of attempt {self.attempt_id}"


class LinkProbe(models.Model):
    """A job of an admin that measures links of devices of one type; only it may report them."""

    job = models.OneToOneField(
        Job, primary_key=True, on_delete=models.CASCADE, related_name="link_probe"
    )
    device_type = models.CharField(max_length=100)
    requested_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"link probe {self.job_id}"


class LinkMeasurement(models.Model):
    """Measured times of messages over links of one class between devices of one type.

    ``link_class`` is a level of cells, or ``network`` for devices without a common cell.
    ``points`` has entries ``[primitive, group, bytes, seconds]``. ``transport`` is ``gloo`` or
    ``tcp``, ``spread`` the median relative spread of the repetitions, ``pairs`` the number of
    measured pairs of devices, and ``nodes`` the names of their nodes.
    """

    device_type = models.CharField(max_length=100)
    link_class = models.CharField(max_length=64)
    transport = models.CharField(max_length=8)
    points = DocumentField(default=list)
    spread = models.FloatField()
    pairs = models.PositiveIntegerField()
    nodes = DocumentField(default=list)
    job = models.ForeignKey(
        Job, null=True, on_delete=models.SET_NULL, related_name="link_measurements"
    )
    measured_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["device_type", "link_class"], name="link_measurement_one_per_class"
            )
        ]

    def __str__(self) -> str:
        return f"{self.link_class} of {self.device_type}"
