"""Rows of idle policies, idle jobs and log rules."""

from django.db import models
from django.db.models import F, Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.core.watching.idleness import IdleScope
from scheduling.core.watching.log_rules import LogAction
from scheduling.enums import one_of
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt


class LogActionChoice(models.TextChoices):
    """The log actions of the core with their display names."""

    EXCLUDE_NODE = LogAction.EXCLUDE_NODE.value, "the next attempt avoids the node"
    STOP_RETRIES = LogAction.STOP_RETRIES.value, "there is no next attempt"
    LABEL = LogAction.LABEL.value, "the job gets a label"


class IdleScopeChoice(models.TextChoices):
    """The scopes of idle policies with their display names."""

    ALL = IdleScope.ALL.value, "all devices of the job"
    ANY = IdleScope.ANY.value, "any device of the job"


class IdleRule(models.Model):
    """The idle policy of a virtual cluster for jobs without their own.

    ``below`` is in percent, durations are in seconds. ``exempt_priorities`` lists names of
    priority classes, such as those of interactive work. If ``binding`` is set, jobs may only
    tighten the policy.
    """

    virtual_cluster = models.OneToOneField(
        VirtualCluster, on_delete=models.CASCADE, primary_key=True, related_name="idle_rule"
    )
    below = models.FloatField(default=5.0)
    warn_after = models.PositiveIntegerField(default=1800)
    stop_after = models.PositiveIntegerField(null=True, default=3600)
    exempt_priorities = models.JSONField(default=list, blank=True)
    binding = models.BooleanField(default=False)
    devices = models.CharField(max_length=3, choices=IdleScopeChoice, default=IdleScopeChoice.ALL)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=one_of("devices", IdleScopeChoice), name="idle_rule_devices_are_known"
            ),
            models.CheckConstraint(
                condition=Q(below__gt=0, below__lte=100), name="idle_rule_below_is_a_share"
            ),
            models.CheckConstraint(
                condition=Q(stop_after=None) | Q(stop_after__gt=F("warn_after")),
                name="idle_rule_warns_before_it_stops",
            ),
        ]

    def __str__(self) -> str:
        return f"idle rule of {self.virtual_cluster_id}"


class IdleSpell(models.Model):
    """A running job of which devices were idle from ``since`` until ``until``.

    ``devices`` lists node ID and index of each. ``idle_devices`` is their number, or null if they
    are all devices of the job.
    """

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="idle_spell"
    )
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    since = models.DateTimeField()
    until = models.DateTimeField()
    warned_at = models.DateTimeField(null=True)
    stop_at = models.DateTimeField(null=True)
    devices = models.JSONField(default=list)
    idle_devices = models.PositiveIntegerField(null=True)

    def __str__(self) -> str:
        return f"job {self.job_id} idle since {self.since}"


class LogRule(models.Model):
    """A pattern for the logs of all jobs, with the action after a match."""

    name = models.CharField(max_length=60, unique=True)
    pattern = models.CharField(max_length=500)
    action = models.CharField(max_length=12, choices=LogActionChoice)
    enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=one_of("action", LogActionChoice), name="log_rule_action_is_known"
            ),
            models.CheckConstraint(condition=~Q(name=""), name="log_rule_has_a_name"),
        ]

    def __str__(self) -> str:
        return self.name


class LogRuleHit(models.Model):
    """A match of a rule in the log of an attempt, stored once per rule and node."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="log_hits")
    node_name = models.CharField(max_length=63)
    rule = models.CharField(max_length=60)
    action = models.CharField(max_length=12)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "node_name", "rule"], name="log_rule_hit_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.rule} on {self.node_name} in attempt {self.attempt_id}"
