"""Rows of the workers: node leases, heartbeats, duties, logs, goodput, metrics, telemetry."""

from django.db import models
from django.db.models import Q

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Member


class NodeLease(models.Model):
    """A node service manages a node until ``expires_at``; ``epoch`` fences off its predecessor.

    Every write about a node's members compares the epoch. So writes of a suspended service are
    dropped if another service has taken over meanwhile.
    """

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="carrier")
    owner = models.CharField(max_length=100, blank=True)
    epoch = models.PositiveBigIntegerField(default=0)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"node {self.node_id} by {self.owner or 'nobody'} ({self.epoch})"


class NodeBackoff(models.Model):
    """A node service that could not reach a node does not claim it before ``until``.

    ``silent_since``: when the service recorded the node as silent; None if it did not.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="backoffs")
    process = models.CharField(max_length=100)
    until = models.DateTimeField()
    silent_since = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "process"], name="nodebackoff_one_per_service")
        ]

    def __str__(self) -> str:
        return f"node {self.node_id} not by {self.process}"


class NodeKey(models.Model):
    """The result of the last replacement of the control plane's SSH key on a node.

    ``public``: the new key. ``cause``: reason of a failure; empty if the node accepts only it.
    """

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="ssh_key")
    public = models.CharField(max_length=1000)
    cause = models.CharField(max_length=200, blank=True, default="")
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"SSH key of node {self.node_id}"


class Heartbeat(models.Model):
    """One row per process, renewed while its loop runs, with measurements of its host.

    ``skew_seconds`` is how far the host's clock is ahead of the database's. ``refusal`` is the
    code of the reason for which the process does no work, empty if it works.
    """

    process = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=20)
    pid = models.PositiveIntegerField()
    host = models.CharField(max_length=255)
    started_at = models.DateTimeField()
    at = models.DateTimeField()
    skew_seconds = models.FloatField(null=True)
    disk_free_bytes = models.BigIntegerField(null=True)
    disk_total_bytes = models.BigIntegerField(null=True)
    refusal = models.CharField(max_length=40, blank=True, default="")

    def __str__(self) -> str:
        return self.process


class DiskAlarm(models.Model):
    """The disk of a node, or the data directory of a host, is almost full; admins are notified.

    ``host`` is empty for a node. The row is deleted when there is enough room again.
    """

    node = models.OneToOneField(
        Node, null=True, on_delete=models.CASCADE, related_name="disk_alarm"
    )
    host = models.CharField(max_length=255, blank=True)
    since = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host"], condition=Q(node=None), name="diskalarm_one_per_host"
            ),
            models.CheckConstraint(
                condition=Q(node=None) & ~Q(host="") | Q(node__isnull=False, host=""),
                name="diskalarm_of_a_node_or_a_host",
            ),
        ]

    def __str__(self) -> str:
        return f"disk of {self.host or f'node {self.node_id}'} almost full"


class DutyLease(models.Model):
    """One process at a time performs a duty, such as sending periodic tasks, until ``expires_at``.

    ``state`` is passed to the next holder.
    """

    name = models.CharField(max_length=40, primary_key=True)
    owner = models.CharField(max_length=100, blank=True)
    expires_at = models.DateTimeField()
    state = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"{self.name} by {self.owner or 'nobody'}"


class LogStream(models.Model):
    """Fetched range of one member's log in the data directory.

    ``first`` and ``end`` are logical byte offsets: the cap has dropped bytes before ``first``.
    ``closed``: the log is complete. ``host`` wrote the newest bytes.
    """

    member = models.OneToOneField(Member, on_delete=models.CASCADE, related_name="log")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="logs")
    path = models.CharField(max_length=200)
    host = models.CharField(max_length=255, blank=True, default="")
    first = models.PositiveBigIntegerField(default=0)
    end = models.PositiveBigIntegerField(default=0)
    reports_end = models.PositiveBigIntegerField(default=0)
    closed = models.BooleanField(default=False)
    pruned_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.path


class GoodputSample(models.Model):
    """Reported progress of one attempt over one interval of a few seconds.

    ``throughput`` is in samples per second over the interval; ``efficiency`` is 1.0 until it is
    known; ``goodput`` is their product. ``batch`` is None if not reported.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="goodput")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="goodput")
    at = models.DateTimeField()
    seconds = models.FloatField()
    step = models.BigIntegerField()
    steps = models.PositiveIntegerField()
    samples = models.FloatField()
    step_seconds = models.FloatField(null=True)
    loss = models.FloatField(null=True)
    throughput = models.FloatField()
    efficiency = models.FloatField(default=1.0)
    batch = models.PositiveBigIntegerField(null=True)
    goodput = models.FloatField()
    devices = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "at"], name="goodput_sample_one_per_instant"
            ),
            models.CheckConstraint(
                condition=Q(efficiency__gt=0, efficiency__lte=1),
                name="goodput_efficiency_is_a_share",
            ),
        ]
        indexes = [models.Index(fields=["job", "at"], name="goodput_by_job")]

    def __str__(self) -> str:
        return f"job {self.job_id} at {self.at}"


class MetricSeries(models.Model):
    """A metric of one process of a rank, over all attempts of its job.

    ``count`` is the number of its points, by which blocks are numbered. ``last`` is the newest
    value, None if it is not finite, and ``last_step`` its step.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="metrics")
    name = models.CharField(max_length=100)
    role = models.CharField(max_length=32)
    rank = models.PositiveIntegerField()
    node_rank = models.PositiveIntegerField()
    process = models.PositiveIntegerField(default=0)
    count = models.PositiveBigIntegerField(default=0)
    last = models.FloatField(null=True)
    last_step = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "name", "role", "rank", "process"], name="metricseries_one_per_rank"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.role}-{self.rank} of job {self.job_id}"


class MetricBlock(models.Model):
    """A block of buckets of a series (``services.rollups``); the newest of its level may be open.

    ``size`` is the number of its buckets, ``least_step`` and ``greatest_step`` are their bounds.
    """

    series = models.ForeignKey(
        MetricSeries, on_delete=models.CASCADE, related_name="blocks", db_index=False
    )
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+", db_index=False)
    level = models.PositiveSmallIntegerField()
    number = models.PositiveBigIntegerField()
    size = models.PositiveIntegerField()
    least_step = models.BigIntegerField()
    greatest_step = models.BigIntegerField()
    content = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["series", "level", "number"], name="metricblock_one_per_number"
            ),
        ]
        indexes = [models.Index(fields=["job", "level", "id"], name="metricblock_by_job")]

    def __str__(self) -> str:
        return f"block {self.number} of level {self.level} of series {self.series_id}"


class TrainingGoal(models.Model):
    """The declared last step of a job's training."""

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="training_goal"
    )
    total_steps = models.BigIntegerField()

    def __str__(self) -> str:
        return f"job {self.job_id} ends at step {self.total_steps}"


class TrackedRun(models.Model):
    """An MLflow run of a rank, identified by MLflow's run ID ``key``, also in later attempts.

    ``attempt`` is the number of the newest attempt that reported it.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="tracked_runs")
    key = models.CharField(max_length=32)
    role = models.CharField(max_length=32)
    rank = models.PositiveIntegerField()
    process = models.PositiveIntegerField(default=0)
    attempt = models.PositiveIntegerField()
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=16)
    parameters = models.JSONField(default=dict)
    tags = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "role", "rank", "key"], name="trackedrun_one_per_key"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.role}-{self.rank} of job {self.job_id}"


class NodeTelemetry(models.Model):
    """One minute of a node (or a roll-up of 600 or 3600 s): arrays by device index."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="telemetry")
    at = models.DateTimeField()
    span_seconds = models.PositiveIntegerField(default=60)
    samples = models.PositiveIntegerField(default=1)
    utilisation = models.JSONField(default=list)
    memory_bytes = models.JSONField(default=list)
    temperature = models.JSONField(default=list)
    cpu_load = models.FloatField(null=True)
    memory_used_bytes = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node", "span_seconds", "at"], name="node_telemetry_one_per_span"
            ),
        ]
        indexes = [models.Index(fields=["span_seconds", "at"], name="node_telemetry_by_time")]

    def __str__(self) -> str:
        return f"node {self.node_id} at {self.at}"
