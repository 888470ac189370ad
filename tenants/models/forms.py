"""Tokens of forms that were submitted, so that a second click has no effect."""

from typing import ClassVar

from django.conf import settings
from django.db import models


class FormToken(models.Model):
    """A submitted form: ``made`` is the primary key of the object that it created.

    ``word`` is the one-time token of the rendered form, ``digest`` the hash of its fields. Rows
    are deleted after a day.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    word = models.CharField(max_length=32)
    digest = models.CharField(max_length=64)
    made = models.BigIntegerField(null=True)
    at = models.DateTimeField()

    class Meta:
        db_table = "tenants_usedform"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "word"], name="formtoken_one_per_word"),
        ]
        indexes: ClassVar = [models.Index(fields=["at"], name="formtoken_by_time")]

    def __str__(self) -> str:
        return f"{self.user_id} submitted {self.word}"
