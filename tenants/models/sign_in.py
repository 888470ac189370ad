"""One-time links with which people choose a password."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q


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
