"""Rows of a person's start page: messages with their read state, and snoozed problems."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from tenants.models.tenants import Tenant
from tenants.tenancy import TenantManager


class InboxMessage(models.Model):
    """An event for one person; ``tenant`` is None for events of the cluster.

    ``body`` is the body of the notification without URL; ``job`` is the ID of its job, if any.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="+")
    event_uid = models.UUIDField()
    event = models.CharField(max_length=40)
    job = models.BigIntegerField(null=True)
    body = models.JSONField()
    at = models.DateTimeField()
    read_at = models.DateTimeField(null=True)

    objects: ClassVar["TenantManager[InboxMessage]"] = TenantManager("tenant_id")

    class Meta:
        ordering = ("-id",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["event_uid", "user"], name="inbox_once_per_person"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["user", "-id"], name="inbox_newest"),
            models.Index(fields=["user"], condition=Q(read_at=None), name="inbox_unread"),
            models.Index(fields=["at"], name="inbox_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.event} for {self.user_id}"


class Snooze(models.Model):
    """A problem of *Needs attention* that is hidden from one person until a time."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=80)
    until = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "key"], name="snooze_once"),
        ]

    def __str__(self) -> str:
        return f"{self.key} until {self.until}"
