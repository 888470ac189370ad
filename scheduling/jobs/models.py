"""Rows of jobs, their events, limits, archives and sweeps."""

from typing import ClassVar, Final

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.core.lifecycle import HOLDING, LIVE, TERMINAL, JobState
from scheduling.document_field import DocumentField
from scheduling.enums import FailureClassChoice, JobClass, JobStateChoice, one_of
from tenants.models import Tenant
from tenants.tenancy import TenantManager, TenantScopedQuerySet

# Sorted, so that generated migrations do not depend on the order of a set.
LIVE_STATES: Final = tuple(sorted(state.value for state in LIVE))
HOLDING_STATES: Final = tuple(sorted(state.value for state in HOLDING))
TERMINAL_STATES: Final = tuple(sorted(state.value for state in TERMINAL))
CHECKPOINT: Final = "checkpoint"
"""Kind of the ``JobEvent`` of a saved checkpoint."""


class JobQuerySet(TenantScopedQuerySet["Job"]):
    def live(self) -> "JobQuerySet":
        """Return jobs that have not ended."""
        return self.filter(state__in=LIVE_STATES)

    def holding(self) -> "JobQuerySet":
        """Return jobs that hold devices."""
        return self.filter(state__in=HOLDING_STATES)

    def queued(self) -> "JobQuerySet":
        """Return jobs that wait."""
        return self.filter(state=JobState.QUEUED)


class Job(models.Model):
    """A submitted job. Only ``services.lifecycle`` writes ``state``.

    ``spec`` is the canonical specification without secrets, and ``source_text`` the submitted
    text, if any. Rounds read ``demand``, a compact form; ``terms`` are other declared facts for
    policies. ``reason_*`` describe the reason of a queued job. ``saved_at`` is the time of the
    report of its newest checkpoint. ``event_at`` is the time of its newest event and a lower bound
    of later ones; it is None if no event followed ``state_since``. ``model_fingerprint`` is that
    of a job with hybrid parallelism, and empty for others. ``guest_floor`` and ``guest_wants`` are
    bytes of device memory of a job that may be a guest, otherwise None. After
    ``sharing_stopped_at``, its devices take no guests. ``cpu_seconds`` are charged CPUs times
    seconds of a job without devices.
    """

    name = models.CharField(max_length=63)
    # The indexes below begin with these three columns; separate indexes would slow every submit.
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    state = models.CharField(max_length=12, choices=JobStateChoice, default=JobStateChoice.QUEUED)
    state_since = models.DateTimeField()
    job_class = models.CharField(max_length=16, choices=JobClass, default=JobClass.GUARANTEED)
    priority = models.SmallIntegerField(default=10)
    labels = models.JSONField(default=dict, blank=True)
    note = models.CharField(max_length=500, blank=True)
    spec = models.JSONField()
    source_text = models.TextField(blank=True)
    source_format = models.CharField(max_length=20, default="native")
    warnings = models.JSONField(default=list, blank=True)
    demand = DocumentField()
    terms = models.JSONField(default=dict, blank=True)
    devices = models.PositiveIntegerField()
    submitted_at = models.DateTimeField()
    first_started_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    attempts_made = models.PositiveIntegerField(default=0)
    amendments = models.PositiveIntegerField(default=0)
    failures = models.JSONField(default=dict, blank=True)
    failure_class = models.CharField(max_length=16, choices=FailureClassChoice, blank=True)
    exit_code = models.IntegerField(null=True)
    end_message = models.CharField(max_length=500, blank=True)
    retryable = models.BooleanField(default=False)
    reason_code = models.CharField(max_length=40, blank=True)
    reason_text = models.CharField(max_length=500, blank=True)
    reason = DocumentField(default=dict, blank=True)
    held = models.BooleanField(default=False)
    held_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_index=False,
    )
    not_before = models.DateTimeField(null=True)
    backoff_until = models.DateTimeField(null=True)
    max_duration_seconds = models.PositiveIntegerField(null=True)
    excluded_nodes = models.JSONField(default=list, blank=True)
    gpu_seconds = models.FloatField(default=0)
    cpu_seconds = models.FloatField(default=0, db_default=0)
    guest_floor = models.PositiveBigIntegerField(null=True)
    guest_wants = models.PositiveBigIntegerField(null=True)
    guest_seconds = models.FloatField(default=0)
    sharing_stopped_at = models.DateTimeField(null=True)
    saved_at = models.DateTimeField(null=True)
    event_at = models.DateTimeField(null=True)
    cloned_from = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="clones", db_index=False
    )
    idempotency_key = models.CharField(max_length=128, blank=True)
    idempotency_digest = models.CharField(max_length=64, blank=True, default="")
    model_fingerprint = models.CharField(max_length=64, blank=True, default="")

    objects = TenantManager.from_queryset(JobQuerySet)("tenant_id")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=one_of("state", JobStateChoice), name="job_state_is_known"
            ),
            models.CheckConstraint(
                condition=one_of("job_class", JobClass), name="job_class_is_known"
            ),
            models.CheckConstraint(
                condition=Q(priority__gte=-1, priority__lte=1000), name="job_priority_is_in_range"
            ),
            models.CheckConstraint(
                condition=Q(failure_class="") | one_of("failure_class", FailureClassChoice),
                name="job_failure_class_is_known",
            ),
            models.CheckConstraint(
                condition=Q(finished_at=None, state__in=LIVE_STATES)
                | Q(finished_at__isnull=False, state__in=TERMINAL_STATES),
                name="job_ended_has_a_time",
            ),
            models.UniqueConstraint(
                fields=["owner", "idempotency_key"],
                condition=~Q(idempotency_key=""),
                name="job_one_per_idempotency_key",
            ),
        ]
        indexes = [
            models.Index(
                fields=["state", "virtual_cluster"],
                condition=Q(state__in=LIVE_STATES),
                name="job_live",
            ),
            models.Index(fields=["tenant", "-id"], name="job_tenant_newest"),
            models.Index(fields=["owner", "-id"], name="job_owner_newest"),
            models.Index(fields=["virtual_cluster", "-id"], name="job_vc_newest"),
            models.Index(fields=["state", "-id"], name="job_state_newest"),
            # For counts by state per person and per virtual cluster.
            models.Index(fields=["owner", "state"], name="job_owner_states"),
            models.Index(fields=["virtual_cluster", "state"], name="job_vc_states"),
            models.Index(fields=["state", "-priority", "id"], name="job_queue_order"),
            # Covering index for counts of live jobs.
            models.Index(
                fields=["state", "tenant", "virtual_cluster", "reason_code", "devices"],
                name="job_counts",
            ),
            models.Index(fields=["finished_at"], name="job_finished"),
            models.Index(fields=["name", "note"], name="job_search"),
            models.Index(
                fields=["first_started_at"],
                condition=Q(first_started_at__isnull=False),
                name="job_first_started",
            ),
            models.Index(
                fields=["cloned_from"],
                condition=Q(cloned_from__isnull=False),
                name="job_cloned_from",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.name}"

    @property
    def is_over(self) -> bool:
        """Return whether the job is in a final state."""
        return JobState(self.state) in TERMINAL


class JobDependency(models.Model):
    """A dependency: ``job`` starts only after ``after`` has succeeded."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies")
    after = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependents")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "after"], name="job_dependency_once"),
            models.CheckConstraint(
                condition=~Q(job=models.F("after")), name="job_dependency_is_another"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} after {self.after_id}"


class JobSecret(models.Model):
    """A secret of a job, encrypted with the installation's key; deleted when the job ends."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="secrets")
    role = models.CharField(max_length=32)
    name = models.CharField(max_length=128)
    sealed = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "role", "name"], name="job_secret_one_per_name"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} {self.role} {self.name}"


TEXT_MESSAGE: Final = "text_message"
"""Key in an event's ``detail``: the message of its ``text``."""


class JobEvent(models.Model):
    """An event of a job; ``id`` gives the order.

    ``untold`` is true until the outbox has created the deliveries. The row is its own outbox
    entry, since the transaction of the event writes it.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events", db_index=False)
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    state = models.CharField(max_length=12, blank=True)
    attempt = models.PositiveIntegerField(null=True)
    text = models.CharField(max_length=500, blank=True)
    detail = models.JSONField(default=dict, blank=True)
    untold = models.BooleanField(default=False)

    class Meta:
        indexes = [
            models.Index(fields=["job", "id"], name="job_event_order"),
            models.Index(fields=["id"], condition=Q(untold=True), name="job_event_untold"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} {self.kind}"


class SourceArchive(models.Model):
    """An uploaded source archive; its file in the data directory is named by its SHA-256."""

    sha256 = models.CharField(max_length=64)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="archives")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="archives"
    )
    name = models.CharField(max_length=200)
    size = models.BigIntegerField()
    created_at = models.DateTimeField()

    objects = TenantManager("tenant_id")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "sha256"], name="source_archive_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.sha256[:12]}"


DEFAULT_PER_PERSON: Final = 10_000
DEFAULT_PER_TENANT: Final = 30_000
CLUSTER: Final = "cluster"


def tenant_key(tenant_id: int) -> str:
    """Return the ``JobLimit.key`` of a tenant."""
    return f"tenant:{tenant_id}"


def member_key(tenant_id: int, user_id: int | None) -> str:
    """Return the ``JobLimit.key`` of one person in a tenant."""
    return f"member:{tenant_id}:{user_id}"


class JobLimit(models.Model):
    """Limits of live jobs of the cluster, of a tenant, or of one person in a tenant.

    If a limit is None, the wider limit applies. ``key`` is ``CLUSTER``, a ``tenant_key`` or a
    ``member_key``.
    """

    key = models.CharField(max_length=48, unique=True)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+"
    )
    per_person = models.PositiveIntegerField(null=True)
    per_tenant = models.PositiveIntegerField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(per_person=None) | Q(per_person__gt=0),
                name="joblimit_per_person_is_positive",
            ),
            models.CheckConstraint(
                condition=Q(per_tenant=None) | Q(per_tenant__gt=0),
                name="joblimit_per_tenant_is_positive",
            ),
            models.CheckConstraint(
                condition=Q(user=None) | Q(per_tenant=None),
                name="joblimit_of_member_is_per_person",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.per_person} a person, {self.per_tenant} a tenant"


class SavedView(models.Model):
    """Stored filters of the list of jobs, with a name chosen by a user."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views"
    )
    name = models.CharField(max_length=40)
    query = models.CharField(max_length=1000, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="saved_view_one_per_name"),
        ]

    def __str__(self) -> str:
        return self.name


class JobTemplate(models.Model):
    """A stored specification to start from, for its owner or for all members of ``tenant``."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="job_templates"
    )
    tenant = models.ForeignKey(
        Tenant, null=True, on_delete=models.CASCADE, related_name="job_templates"
    )
    name = models.CharField(max_length=63)
    note = models.CharField(max_length=200, blank=True)
    text = models.TextField()
    created_at = models.DateTimeField()

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "name"],
                condition=Q(tenant=None),
                name="job_template_one_per_owner",
            ),
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(tenant__isnull=False),
                name="job_template_one_per_tenant",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Sweep(models.Model):
    """Jobs that were submitted together, one for each point of a grid.

    The job IDs are between ``first_job`` and ``last_job``; the jobs have the label ``sweep`` with
    the value ``label``. With ``max_parallel``, further jobs are held until earlier ones end.
    ``is_open`` is true while jobs are held. ``options`` has the search, the objective and the
    early stops (``core.sweeps.options_to_json``). ``is_watched`` is true while jobs can end early.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="sweeps")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.PROTECT, related_name="sweeps"
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sweeps"
    )
    name = models.CharField(max_length=63)
    label = models.CharField(max_length=63)
    parameters = models.JSONField()
    max_parallel = models.PositiveIntegerField(null=True)
    jobs = models.PositiveIntegerField()
    first_job = models.BigIntegerField()
    last_job = models.BigIntegerField()
    is_open = models.BooleanField(default=False)
    options = models.JSONField(default=dict)
    is_watched = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["is_open"], condition=Q(is_open=True), name="sweep_open"),
            models.Index(
                fields=["is_watched"], condition=Q(is_watched=True), name="sweep_watched"
            ),
        ]

    def __str__(self) -> str:
        return f"sweep {self.pk} {self.name}"
