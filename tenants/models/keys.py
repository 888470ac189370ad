"""Rows of the installation's keys: sealed secret keys and SSH keys, and the installation's ID."""

from typing import ClassVar

from django.db import models
from django.db.models import Q


class InstallationKey(models.Model):
    """One key of the installation.

    ``sealed`` is the key, encrypted with the seal secret; empty for the installation's ID.
    ``public`` is the public part: the public key line of an SSH key, or the ID.
    """

    class Kind(models.TextChoices):
        """Purpose of a key."""

        SECRET = "secret"  # noqa: S105 a kind of key
        SSH = "ssh"
        INSTALLATION = "installation"

    class State(models.TextChoices):
        """``next``: accepted, but not used yet. ``old``: accepted, no longer used."""

        NEXT = "next"
        CURRENT = "current"
        OLD = "old"

    kind = models.CharField(max_length=12, choices=Kind.choices)
    state = models.CharField(max_length=7, choices=State.choices)
    sealed = models.BinaryField(default=b"")
    public = models.CharField(max_length=1000, blank=True, default="")
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["kind"], condition=Q(state="current"), name="key_one_current_per_kind"
            ),
            models.UniqueConstraint(
                fields=["kind"], condition=Q(state="next"), name="key_one_next_per_kind"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=["secret", "ssh", "installation"]), name="key_kind_is_known"
            ),
            models.CheckConstraint(
                condition=Q(state__in=["next", "current", "old"]), name="key_state_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.state} {self.kind} key"


class JoinBundle(models.Model):
    """The environment of a further host, encrypted with a one-time token that no row contains."""

    id = models.CharField(max_length=32, primary_key=True)
    sealed = models.BinaryField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"join bundle until {self.expires_at}"
