"""Rows of attempts, their members and leases, and sums of their reports."""

from django.db import models
from django.db.models import Q

from scheduling.clusters.models.nodes import Device, Node, NodeTenancy
from scheduling.core.sharing.hosts import MOST_GUESTS
from scheduling.enums import LeaseKind, MemberStep, SuspensionTier, one_of
from scheduling.jobs.models import Job
from tessera.isolation import LEVELS, NONE


class Attempt(models.Model):
    """One try to run a job on one placement.

    ``uid`` names the run directories on the nodes. ``port`` is the rendezvous port, unique among
    open attempts. ``demand`` is the gang at the size that the policy chose; None means the
    submitted size. ``devices``, ``device_type`` (the first of several) and ``nodes`` describe the
    allocation; they are 0 and empty for old attempts. ``layout`` has the logical workers of each
    process by member, if the job has logical workers. An attempt that began as a guest of another
    job's device has ``is_guest`` until its end; it holds the device from ``promoted_at`` on. With
    ``is_peer``, its policy has paired it with that job, so that both are charged. ``suspended_by``
    is the tier of its latest suspension (``SuspensionTier``), and ``suspended_since`` its begin
    while it lasts.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    uid = models.CharField(max_length=32, unique=True)
    round_number = models.PositiveBigIntegerField()
    opportunistic = models.BooleanField(default=False)
    port = models.PositiveIntegerField()
    master_host = models.CharField(max_length=255, blank=True)
    demand = models.JSONField(null=True)
    devices = models.PositiveIntegerField(default=0)
    device_type = models.CharField(max_length=100, blank=True)
    nodes = models.PositiveIntegerField(default=0)
    layout = models.JSONField(null=True)
    is_guest = models.BooleanField(default=False)
    is_peer = models.BooleanField(default=False)
    suspended_by = models.CharField(max_length=2, choices=SuspensionTier, blank=True, default="")
    suspensions = models.PositiveIntegerField(default=0)
    suspended_seconds = models.FloatField(default=0)
    suspended_since = models.DateTimeField(null=True)
    promoted_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=20, blank=True)
    exit_code = models.IntegerField(null=True)
    failure_class = models.CharField(max_length=16, blank=True)
    message = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["job_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_one_per_number"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(ended_at=None), name="attempt_one_open_per_job"
            ),
            models.UniqueConstraint(
                fields=["port"], condition=Q(ended_at=None), name="attempt_one_open_per_port"
            ),
            models.CheckConstraint(condition=Q(number__gt=0), name="attempt_number_is_positive"),
        ]
        # The index contains both ends, so that a query for a period reads only rows in that
        # period.
        indexes = [models.Index(fields=["ended_at", "created_at"], name="attempt_by_end")]

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"


class Member(models.Model):
    """One rank of one role of an attempt, on one node.

    ``step`` moves forward only, by compare-and-set. ``rank`` counts within the role, and
    ``node_rank`` within the whole gang. If ``removed_at`` is set, the run directory is gone from
    the node; queries for open members also filter by its absence, to use the index by node.

    ``settings`` are the tuned settings of the job (``tessera.train.control``), stored at the first
    member of the gang; its node has received version ``settings_told``. ``least_isolation`` is the
    level that the round assumed, and ``isolation`` the actual level. ``network`` is the actual
    network; both are empty before the process runs. ``warnings`` are codes from the node,
    separated by spaces. ``tenancy`` is set if the member runs without isolation on a node that
    belongs to its tenant. ``share_version`` counts the changes of the guests on its devices, of
    which its node has received version ``share_told``.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="members")
    node = models.ForeignKey(
        Node, on_delete=models.PROTECT, related_name="members", db_index=False
    )
    role = models.CharField(max_length=32)
    rank = models.PositiveIntegerField()
    node_rank = models.PositiveIntegerField()
    devices = models.JSONField()
    ports = models.JSONField(default=dict, blank=True)
    step = models.CharField(max_length=12, choices=MemberStep, default=MemberStep.WAITING)
    step_since = models.DateTimeField()
    stop_asked_at = models.DateTimeField(null=True)
    stop_cause = models.CharField(max_length=20, blank=True)
    pid = models.PositiveIntegerField(null=True)
    boot_id = models.CharField(max_length=64, blank=True)
    started_at = models.DateTimeField(null=True)
    exited_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    exit_signal = models.IntegerField(null=True)
    exit_cause = models.CharField(max_length=20, blank=True)
    failure_class = models.CharField(max_length=16, blank=True)
    message = models.CharField(max_length=500, blank=True)
    lease_renewed_at = models.DateTimeField(null=True)
    settings = models.JSONField(null=True)
    settings_version = models.PositiveIntegerField(default=0)
    settings_told = models.PositiveIntegerField(default=0)
    settings_at = models.DateTimeField(null=True)
    share_version = models.PositiveIntegerField(default=0)
    share_told = models.PositiveIntegerField(default=0)
    removed_at = models.DateTimeField(null=True)
    least_isolation = models.CharField(max_length=16, default=NONE)
    isolation = models.CharField(max_length=16, blank=True)
    network = models.CharField(max_length=16, blank=True)
    warnings = models.CharField(max_length=200, blank=True)
    tenancy = models.ForeignKey(
        NodeTenancy, on_delete=models.PROTECT, null=True, related_name="members"
    )

    class Meta:
        ordering = ["attempt_id", "node_rank"]
        constraints = [
            models.CheckConstraint(
                condition=Q(least_isolation__in=LEVELS), name="member_least_isolation_is_known"
            ),
            models.UniqueConstraint(
                fields=["attempt", "role", "rank"], name="member_one_per_rank"
            ),
            models.CheckConstraint(
                condition=one_of("step", MemberStep), name="member_step_is_known"
            ),
            models.CheckConstraint(
                condition=Q(removed_at=None)
                | Q(step__in=[MemberStep.EXITED, MemberStep.RELEASED]),
                name="member_removed_has_ended",
            ),
        ]
        indexes = [
            models.Index(
                fields=["node", "step"],
                condition=Q(removed_at=None),
                name="member_on_node",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role}-{self.rank} of attempt {self.attempt_id}"


class AttemptProgress(models.Model):
    """Sums of an attempt's reports, from which performance models are fitted.

    ``seconds`` and ``steps`` are sums of the first rank, ``samples`` of all ranks. ``losses`` has
    points of step and loss over the whole attempt (``core.performance.losses``). ``batch``,
    ``accumulation`` and the gradient noise (at the initial batch) are the newest reported values.
    ``largest_parameter`` and ``parameter_bytes`` are bytes of the largest parameter tensor and of
    all together; null if not reported.
    """

    attempt = models.OneToOneField(
        Attempt, on_delete=models.CASCADE, primary_key=True, related_name="progress"
    )
    seconds = models.FloatField(default=0.0)
    steps = models.PositiveBigIntegerField(default=0)
    samples = models.FloatField(default=0.0)
    last_step = models.BigIntegerField(default=0)
    loss = models.FloatField(null=True)
    losses = models.JSONField(default=list, blank=True)
    batch = models.PositiveBigIntegerField(null=True)
    accumulation = models.PositiveBigIntegerField(null=True)
    noise_square = models.FloatField(null=True)
    noise_variance = models.FloatField(null=True)
    largest_parameter = models.PositiveBigIntegerField(null=True)
    parameter_bytes = models.PositiveBigIntegerField(null=True)

    def __str__(self) -> str:
        return f"progress of attempt {self.attempt_id}"


class AttemptUse(models.Model):
    """Device use of an attempt until ``until``, for policies.

    ``busy`` is the mean busy share of all reporting devices over ``minutes``. ``memory_peak`` is
    the highest memory use of one device in bytes. Both are None without reports. Rows exist only
    for virtual clusters whose policy or shadow policy reads job facts.
    """

    attempt = models.OneToOneField(
        Attempt, on_delete=models.CASCADE, primary_key=True, related_name="use"
    )
    until = models.DateTimeField()
    minutes = models.PositiveIntegerField(default=0)
    busy = models.FloatField(null=True)
    memory_peak = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(busy=None) | Q(busy__gte=0, busy__lte=1),
                name="attempt_use_busy_is_a_share",
            ),
        ]

    def __str__(self) -> str:
        return f"usage of attempt {self.attempt_id}"


class StepTally(models.Model):
    """Durations of the steps of one batch in an attempt, from which its speed is fitted."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="step_tallies")
    batch = models.PositiveBigIntegerField()
    accumulation = models.PositiveBigIntegerField()
    steps = models.PositiveBigIntegerField(default=0)
    seconds = models.FloatField(default=0.0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "batch", "accumulation"], name="step_tally_one_per_kind"
            ),
        ]

    def __str__(self) -> str:
        return f"batch {self.batch} in attempt {self.attempt_id}"


class Lease(models.Model):
    """The right of an attempt to use a device until ``released_at``.

    ``virtual_cell`` is the virtual leaf bound to the device; empty for opportunistic use. A guest
    uses the device beside the member ``beside``, in slot 1 to 3, in sharing mode ``mode``, with at
    least ``floor`` and at first at most ``most`` bytes of its memory. A guest with ``is_peer`` is
    the equal of that member's job; they take turns of ``turn_seconds``, or run at once (0).
    """

    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="leases")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="leases")
    member = models.ForeignKey(Member, on_delete=models.CASCADE, related_name="leases")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="leases")
    kind = models.CharField(max_length=10, choices=LeaseKind, default=LeaseKind.USING)
    slot = models.PositiveSmallIntegerField(default=0)
    virtual_cell = models.CharField(max_length=255, blank=True)
    beside = models.ForeignKey(
        Member, on_delete=models.PROTECT, null=True, related_name="guests", db_index=False
    )
    mode = models.CharField(max_length=16, blank=True, default="")
    floor = models.PositiveBigIntegerField(null=True)
    most = models.PositiveBigIntegerField(null=True)
    is_peer = models.BooleanField(default=False)
    turn_seconds = models.FloatField(default=0)
    taken_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["device", "kind", "slot"],
                condition=Q(released_at=None),
                name="lease_one_live_per_slot",
            ),
            models.CheckConstraint(
                condition=one_of("kind", LeaseKind), name="lease_kind_is_known"
            ),
            models.CheckConstraint(
                condition=~Q(kind=LeaseKind.GUEST) | Q(virtual_cell=""),
                name="lease_guest_is_opportunistic",
            ),
            models.CheckConstraint(
                condition=~Q(kind=LeaseKind.GUEST) | Q(slot__gte=1, slot__lte=MOST_GUESTS),
                name="lease_guest_slot_is_in_range",
            ),
            models.CheckConstraint(
                condition=Q(
                    kind=LeaseKind.GUEST,
                    beside__isnull=False,
                    floor__isnull=False,
                    floor__gt=0,
                    most__isnull=False,
                    most__gt=0,
                )
                | (~Q(kind=LeaseKind.GUEST) & Q(beside=None)),
                name="lease_guest_has_a_holder",
            ),
            models.CheckConstraint(
                condition=Q(is_peer=False, turn_seconds=0)
                | Q(is_peer=True, kind=LeaseKind.GUEST, turn_seconds__gte=0),
                name="lease_peer_is_a_guest",
            ),
        ]
        indexes = [
            models.Index(fields=["job"], condition=Q(released_at=None), name="lease_live_by_job"),
            models.Index(fields=["taken_at"], name="lease_by_time"),
            models.Index(fields=["released_at"], name="lease_by_end"),
            models.Index(
                fields=["beside"],
                condition=Q(released_at=None, kind=LeaseKind.GUEST),
                name="lease_guest_by_holder",
            ),
        ]

    def __str__(self) -> str:
        return f"device {self.device_id} for job {self.job_id}"


class CpuLease(models.Model):
    """CPUs and memory of a node that an instance without devices uses until ``released_at``.

    They belong to no device. Rounds lease at most what the devices' shares leave of the node. The
    instances of a job with devices have no such lease: all of them use the share of its devices.
    """

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="cpu_leases")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="cpu_leases")
    member = models.OneToOneField(Member, on_delete=models.CASCADE, related_name="cpu_lease")
    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="cpu_leases", db_index=False
    )
    cpus = models.FloatField()
    memory_bytes = models.BigIntegerField()
    taken_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(cpus__gt=0, memory_bytes__gt=0), name="cpu_lease_is_positive"
            ),
        ]
        indexes = [
            models.Index(
                fields=["job"], condition=Q(released_at=None), name="cpu_lease_live_by_job"
            ),
            models.Index(fields=["released_at"], name="cpu_lease_by_end"),
        ]

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs of node {self.node_id} for job {self.job_id}"
