"""Rows of simulated decisions: shadow policies, what-ifs of past days, and promise audits."""

from django.conf import settings
from django.db import models

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.rounds.models import Round
from tenants.tenancy import TenantManager


class ShadowDecision(models.Model):
    """The decision of a shadow policy of a virtual cluster in a stored round.

    A file next to the round's file contains the jobs; it has the same retention. ``kind`` is a
    hash of policy and parameters. ``state`` is the input of the same kind in the next round.
    """

    round = models.ForeignKey(Round, on_delete=models.CASCADE, related_name="shadow_decisions")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="shadow_decisions"
    )
    kind = models.CharField(max_length=64)
    policy = models.CharField(max_length=40)
    policy_args = models.JSONField(default=dict)
    decided_at = models.DateTimeField()
    duration_ms = models.FloatField()
    fault = models.CharField(max_length=500, blank=True)
    starts = models.PositiveIntegerField()
    both = models.PositiveIntegerField()
    only_shadow = models.PositiveIntegerField()
    only_live = models.PositiveIntegerField()
    leaving = models.PositiveIntegerField()
    state = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["round", "virtual_cluster", "kind"], name="shadow_decision_once"
            ),
        ]
        indexes = [
            models.Index(fields=["virtual_cluster", "kind", "-id"], name="shadow_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.policy} in round {self.round_id}"


class WhatIfKind(models.TextChoices):
    """A change of one virtual cluster, or its past days under every policy."""

    WHAT_IF = "what-if", "what-if"
    ADVICE = "advice", "advice"


class WhatIf(models.Model):
    """A what-if: past days under another policy or guarantee, with its result.

    With ``kind`` ``advice``, the days are replayed under every policy; ``policy`` is then the
    policy in force. ``guarantee`` is the number of devices by type; other types are unchanged.
    ``nodes`` is the number of nodes more (or fewer, if negative) by type, of an advice. ``step``
    is the progress, of ``steps``. ``result`` is empty until ``finished_at``; ``fault`` is the
    error if there is no result.
    """

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="what_ifs"
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+"
    )
    kind = models.CharField(max_length=10, choices=WhatIfKind.choices, default=WhatIfKind.WHAT_IF)
    policy = models.CharField(max_length=40)
    policy_args = models.JSONField(default=dict)
    since = models.DateTimeField()
    until = models.DateTimeField()
    size_aware = models.BooleanField(default=False)
    guarantee = models.JSONField(default=dict)
    nodes = models.JSONField(default=dict)
    step = models.PositiveSmallIntegerField(default=0)
    steps = models.PositiveSmallIntegerField(default=3)
    asked_at = models.DateTimeField()
    begun_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    fault = models.CharField(max_length=500, blank=True)
    result = models.JSONField(default=dict)

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=WhatIfKind.values), name="what_if_kind_known"
            ),
        ]
        indexes = [models.Index(fields=["asked_at"], name="what_if_asked")]

    def __str__(self) -> str:
        return f"what if {self.policy} in {self.virtual_cluster_id}"


class PromiseAudit(models.Model):
    """The audit of the sharing promise of one virtual cluster and one day (UTC).

    ``result`` is the document of ``core.promises.PromiseReport``.
    """

    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="promise_audits", db_index=False
    )
    day = models.DateField()
    audited_at = models.DateTimeField()
    result = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["virtual_cluster", "day"], name="promise_audit_one_per_day"
            ),
        ]

    def __str__(self) -> str:
        return f"audit of virtual cluster {self.virtual_cluster_id} on {self.day}"
