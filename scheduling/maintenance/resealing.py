"""Encrypting stored secrets anew with the current secret key, during operation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.db import models

from scheduling.clusters.models import RegistryLogin
from scheduling.jobs.models import JobSecret
from scheduling.notices.models import Webhook
from scheduling.secrets import UnreadableSecretError, is_current, is_readable, reseal

SEALED: Final = ((JobSecret, "sealed"), (RegistryLogin, "sealed"), (Webhook, "sealed_secret"))
"""All columns of sealed secrets."""
BATCH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Resealed:
    """Result of a pass over all sealed secrets.

    Attributes:
        changed: secrets that are encrypted with the current key now.
        unreadable: secrets of an unknown key, which were left as they are.
    """

    changed: int
    unreadable: int


def count_outdated() -> int:
    """Return the number of readable secrets that are not encrypted with the current key."""
    return sum(
        is_readable(sealed) and not is_current(sealed)
        for model, column in SEALED
        for _, sealed in _values(model, column)
    )


def reseal_all() -> Resealed:
    """Encrypt all secrets with the current key; a value that changes meanwhile is left alone."""
    changed = unreadable = 0
    for model, column in SEALED:
        for key, sealed in _values(model, column):
            try:
                fresh = reseal(sealed)
            except UnreadableSecretError:
                unreadable += 1
                continue
            if fresh is not None:
                row = model._base_manager.filter(pk=key, **{column: sealed})
                changed += row.update(**{column: fresh})
    return Resealed(changed=changed, unreadable=unreadable)


def _values(model: type[models.Model], column: str) -> Iterator[tuple[int, bytes]]:
    """Yield primary key and value of all rows, in short reads."""
    last = 0
    while True:
        rows = model._base_manager.filter(pk__gt=last).order_by("pk")
        batch = list(rows.values_list("pk", column)[:BATCH])
        for key, sealed in batch:
            if sealed:
                yield key, bytes(sealed)
        if len(batch) < BATCH:
            return
        last = batch[-1][0]
