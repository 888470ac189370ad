"""Keys for scripts; the key itself is shown once and never stored."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from tenants.models.tenants import Tenant


class ApiToken(models.Model):
    """What is known of a key ``tsr_<prefix>_<secret>``: its prefix and the SHA-256 of the whole.

    A plain SHA-256 suffices: the secret has 256 bits of entropy, there is nothing to guess.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=8, unique=True)
    digest = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    tenant = models.ForeignKey(
        Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="api_tokens"
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-id")
        constraints: ClassVar = [
            models.CheckConstraint(condition=~Q(name=""), name="apitoken_name_not_empty"),
            models.CheckConstraint(condition=~Q(prefix=""), name="apitoken_prefix_not_empty"),
            models.CheckConstraint(condition=~Q(digest=""), name="apitoken_digest_not_empty"),
            models.CheckConstraint(
                condition=Q(expires_at=None) | Q(expires_at__gt=F("created_at")),
                name="apitoken_expires_after_created",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"
