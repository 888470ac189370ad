"""Signing in: failed attempts, sources that are known for a name, one-time password links."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q


class SignInTally(models.Model):
    """Failed sign-ins of a name, a source, or both.

    ``key`` is a keyed digest: a name that does not exist may be a password typed into the wrong
    field. ``failures`` counts older ones less, as of ``at``.
    """

    key = models.CharField(max_length=64, unique=True)
    failures = models.FloatField(default=0)
    at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(failures__gte=0), name="signintally_failures_not_negative"
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["at"], name="signintally_by_time")]

    def __str__(self) -> str:
        return f"{self.failures:.1f} failed sign-ins"


class KnownSource(models.Model):
    """An address or a device (by a keyed digest) from which a person has signed in."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=64)
    last_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "key"], name="knownsource_one_per_key"),
        ]
        indexes: ClassVar = [models.Index(fields=["last_at"], name="knownsource_by_time")]

    def __str__(self) -> str:
        return f"known source of user {self.user_id}"


class PasswordLink(models.Model):
    """A one-time link; ``digest`` is the SHA-256 of its secret, which is not stored.

    The row is deleted when the link is used, replaced, or the password changes.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user"], name="passwordlink_one_per_user"),
            models.CheckConstraint(condition=~Q(digest=""), name="passwordlink_digest_not_empty"),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("created_at")),
                name="passwordlink_expires_after_created",
            ),
        ]

    def __str__(self) -> str:
        return f"password link of user {self.user_id}"
