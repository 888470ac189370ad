"""Announcements of cluster admins, and their dismissals."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q

LONGEST_TEXT = 1000


class Severity(models.TextChoices):
    """Severity of an announcement."""

    INFO = "info", "For information"
    WARNING = "warning", "Warning"
    CRITICAL = "critical", "Critical"


class Announcement(models.Model):
    """A text above all pages from ``starts_at`` until ``ends_at`` (None for no end)."""

    text = models.TextField(max_length=LONGEST_TEXT)
    severity = models.CharField(max_length=8, choices=Severity, default=Severity.INFO)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("-starts_at", "-id")
        constraints: ClassVar = [
            models.CheckConstraint(condition=~Q(text=""), name="announcement_text_not_empty"),
            models.CheckConstraint(
                condition=Q(severity__in=Severity.values), name="announcement_severity_known"
            ),
            models.CheckConstraint(
                condition=Q(ends_at=None) | Q(ends_at__gt=F("starts_at")),
                name="announcement_ends_after_start",
            ),
        ]

    def __str__(self) -> str:
        return self.text[:60]


class AnnouncementDismissal(models.Model):
    """A person has dismissed an announcement in this version."""

    announcement = models.ForeignKey(
        Announcement, on_delete=models.CASCADE, related_name="dismissals"
    )
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    version = models.PositiveIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["announcement", "user", "version"], name="announcement_dismissed_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} has read {self.announcement_id}"
