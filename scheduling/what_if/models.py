"""Decisions that nobody carried out: shadows of rounds, and days replayed under another policy."""

from django.conf import settings
from django.db import models

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.rounds.models import Round
from tenants.tenancy import TenantManager


class ShadowDecision(models.Model):
    """What a shadow policy of a virtual cluster would have done in a stored round.

    The jobs themselves are in a file beside the round's, as long as that is kept. ``kind`` is a
    digest of policy and parameters; ``state`` what the same kind is given in its next round.
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


class WhatIf(models.Model):
    """A question of what another policy would have made of past days, and its answer.

    ``guarantee`` says how many devices of a type there were in the question; types that are not in
    it stay as they were. ``step`` counts how far the answer has come. ``result`` is empty until
    ``finished_at``; ``fault`` says why there is none.
    """

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, on_delete=models.CASCADE, related_name="what_ifs"
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+"
    )
    policy = models.CharField(max_length=40)
    policy_args = models.JSONField(default=dict)
    since = models.DateTimeField()
    until = models.DateTimeField()
    size_aware = models.BooleanField(default=False)
    guarantee = models.JSONField(default=dict)
    step = models.PositiveSmallIntegerField(default=0)
    asked_at = models.DateTimeField()
    begun_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    fault = models.CharField(max_length=500, blank=True)
    result = models.JSONField(default=dict)

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["asked_at"], name="what_if_asked")]

    def __str__(self) -> str:
        return f"what if {self.policy} in {self.virtual_cluster_id}"
