"""Rotation of the secret key: every step can be interrupted, and the next call continues it.

The next key is accepted by all processes before one of them uses it. So no process meets a
signature or a sealed value that it cannot read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from secrets import token_urlsafe

from scheduling.maintenance.resealing import Resealed, count_outdated, reseal_all
from tenants.audit import Actor
from tenants.clock import database_now
from tenants.keyring import SPREAD
from tenants.models import InstallationKey
from tenants.services.keys import (
    drop_old_secret_keys,
    key_row,
    promote_secret_key,
    reseal_keys,
    store_next_secret_key,
)

KEY_BYTES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """Result of a rotation.

    Attributes:
        is_resumed: an earlier rotation was interrupted, and this call has completed it.
        values: the sealed secrets.
        keys: stored keys that were sealed anew.
    """

    is_resumed: bool
    values: Resealed
    keys: int


def rotate_secret_key(*, actor: Actor, wait_until: Callable[[datetime], None]) -> Rotated:
    """Replace the secret key in the database while all processes run.

    Args:
        actor: the actor of the audit rows.
        wait_until: waits until the database's clock has reached an instant.
    """
    kind, state = InstallationKey.Kind.SECRET, InstallationKey.State
    waiting = key_row(kind, state.NEXT)
    is_resumed = waiting is not None or count_outdated() > 0
    if waiting is None and not is_resumed:
        waiting = store_next_secret_key(token_urlsafe(KEY_BYTES), now=database_now(), actor=actor)
    if waiting is not None:
        wait_until(waiting.created_at + SPREAD)
        promote_secret_key(now=database_now(), actor=actor)
    current = key_row(kind, state.CURRENT)
    if current is not None:
        # Until then, a process may still seal values with the previous key.
        wait_until(current.changed_at + SPREAD)
    return Rotated(is_resumed=is_resumed, values=reseal_all(), keys=reseal_keys())


def drop_outlived_secret_keys(*, before: datetime, actor: Actor) -> int:
    """Delete secret keys that were replaced before an instant, once no stored secret needs one.

    An interrupted rotation leaves secrets that only the old key decrypts; they are encrypted
    anew first.

    Returns:
        The number of deleted keys; 0 while a secret still needs one.
    """
    old = InstallationKey.objects.filter(
        kind=InstallationKey.Kind.SECRET, state=InstallationKey.State.OLD, changed_at__lt=before
    )
    if not old.exists():
        return 0
    reseal_all()
    return 0 if count_outdated() else drop_old_secret_keys(before=before, actor=actor)
