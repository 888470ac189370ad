"""Row of the release that migrated the database."""

from typing import ClassVar, Final

from django.db import models
from django.db.models import F, Q

ONLY_ID: Final = 1


class SchemaRelease(models.Model):
    """The newest release that migrated the database; the table has at most one row.

    ``number`` is that release. ``oldest`` is the oldest release whose processes work with the
    tables that it leaves.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY_ID)
    number = models.PositiveIntegerField()
    oldest = models.PositiveIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(id=ONLY_ID), name="schema_release_one_row"),
            models.CheckConstraint(
                condition=Q(oldest__lte=F("number")), name="schema_release_is_in_order"
            ),
        ]

    def __str__(self) -> str:
        return f"release {self.number}, compatible with {self.oldest} and later"
