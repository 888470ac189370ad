"""Rows of notifications: webhooks, mail preferences, pending events and deliveries."""

import uuid
from typing import Final

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduling.clusters.models.virtual_clusters import VirtualCluster
from scheduling.enums import one_of
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.tenancy import TenantManager

LONGEST_URL: Final = 500


class DeliveryState(models.TextChoices):
    WAITING = "waiting", "waiting"
    DELIVERED = "delivered", "delivered"
    DEAD = "dead", "given up"


class Webhook(models.Model):
    """A URL that gets events as signed requests.

    ``tenant`` None means the whole cluster. ``sealed_secret`` is the signing secret, encrypted
    with the installation's key; it is shown once, at the creation.
    """

    name = models.CharField(max_length=80)
    tenant = models.ForeignKey(
        Tenant, null=True, on_delete=models.CASCADE, related_name="webhooks"
    )
    url = models.CharField(max_length=LONGEST_URL)
    events = models.JSONField(default=list)
    sealed_secret = models.BinaryField()
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    version = models.PositiveIntegerField(default=1)

    objects = TenantManager("tenant_id", Permission.MANAGE_HOOKS)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(condition=~Q(name=""), name="webhook_has_a_name"),
            models.CheckConstraint(condition=~Q(url=""), name="webhook_has_an_address"),
        ]

    def __str__(self) -> str:
        return self.name


class NotificationPreference(models.Model):
    """The events that a person gets by mail; without a row the defaults apply."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notification_preference"
    )
    mail = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"mail of {self.user_id}"


class Notice(models.Model):
    """An event of a node or a quota, written in the transaction of the event itself.

    Events of jobs have their own rows (``JobEvent.untold``). ``untold`` is true until the outbox
    has created the deliveries.
    """

    event = models.CharField(max_length=40)
    at = models.DateTimeField()
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="+")
    facts = models.JSONField(default=dict)
    untold = models.BooleanField(default=True)

    objects = TenantManager("tenant_id")

    class Meta:
        indexes = [
            models.Index(fields=["id"], condition=Q(untold=True), name="notice_untold"),
            models.Index(fields=["at"], name="notice_by_time"),
        ]

    def __str__(self) -> str:
        return self.event


class Delivery(models.Model):
    """One event for one webhook or one person; ``uid`` is the same for every try.

    ``log`` has the last tries, each with time, response and duration. A worker has claimed the
    delivery until ``claimed_until``. A replay is a row of its own.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    event_uid = models.UUIDField()
    event = models.CharField(max_length=40)
    hook = models.ForeignKey(
        Webhook, null=True, on_delete=models.CASCADE, related_name="deliveries"
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+"
    )
    body = models.JSONField()
    state = models.CharField(max_length=10, choices=DeliveryState, default=DeliveryState.WAITING)
    tries = models.PositiveIntegerField(default=0)
    log = models.JSONField(default=list)
    created_at = models.DateTimeField()
    next_at = models.DateTimeField()
    claimed_until = models.DateTimeField(null=True)
    done_at = models.DateTimeField(null=True)
    replay_of = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="replays"
    )
    is_replay = models.BooleanField(default=False)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=one_of("state", DeliveryState), name="delivery_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(hook=None, user__isnull=False) | Q(hook__isnull=False, user=None),
                name="delivery_has_one_receiver",
            ),
            models.UniqueConstraint(
                fields=["event_uid", "hook"],
                condition=Q(is_replay=False, hook__isnull=False),
                name="delivery_once_per_hook",
            ),
            models.UniqueConstraint(
                fields=["event_uid", "user"],
                condition=Q(is_replay=False, user__isnull=False),
                name="delivery_once_per_person",
            ),
        ]
        indexes = [
            models.Index(
                fields=["next_at"],
                condition=Q(state=DeliveryState.WAITING),
                name="delivery_due",
            ),
            models.Index(fields=["hook", "-id"], name="delivery_by_hook"),
            models.Index(fields=["user", "-id"], name="delivery_by_person"),
            models.Index(fields=["created_at"], name="delivery_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.uid}"


class QuotaMark(models.Model):
    """The last notified level of a quota: 0, 80 or 100 percent; budgets have one row per month."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    virtual_cluster = models.ForeignKey(
        VirtualCluster, null=True, on_delete=models.CASCADE, related_name="+"
    )
    level = models.PositiveSmallIntegerField(default=0)
    period = models.CharField(max_length=7, blank=True)

    objects = TenantManager("tenant_id")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["virtual_cluster"],
                condition=Q(virtual_cluster__isnull=False),
                name="quota_mark_one_per_virtual_cluster",
            ),
            models.UniqueConstraint(
                fields=["tenant"],
                condition=Q(virtual_cluster=None),
                name="quota_mark_one_per_tenant",
            ),
        ]

    def __str__(self) -> str:
        return f"notification of {self.level} % to tenant {self.tenant_id}"


class GpuHourBudget(models.Model):
    """The expected GPU-hours of a tenant in a calendar month; it does not limit use."""

    tenant = models.OneToOneField(
        Tenant, on_delete=models.CASCADE, primary_key=True, related_name="gpu_hour_budget"
    )
    hours = models.FloatField()

    objects = TenantManager("tenant_id")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(hours__gt=0), name="gpu_hour_budget_is_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.hours:g} GPU-hours of tenant {self.tenant_id}"
