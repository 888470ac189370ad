"""Which forms of pages have done their work, so that a second click does nothing."""

from typing import ClassVar

from django.conf import settings
from django.db import models


class UsedForm(models.Model):
    """A form that was sent and has made something: ``made`` is the key of that.

    ``word`` is the form's own, ``digest`` of what was sent with it. Kept for a day.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    word = models.CharField(max_length=32)
    digest = models.CharField(max_length=64)
    made = models.BigIntegerField(null=True)
    at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "word"], name="usedform_one_per_word"),
        ]
        indexes: ClassVar = [models.Index(fields=["at"], name="usedform_by_time")]

    def __str__(self) -> str:
        return f"{self.user_id} has sent {self.word}"
