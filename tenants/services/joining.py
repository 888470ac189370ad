"""One-time bundles with the environment of a further control host."""

import secrets
from datetime import datetime, timedelta
from typing import Final

from cryptography.fernet import Fernet
from django.db import transaction

from tenants.audit import Actor, record
from tenants.models import JoinBundle
from tessera.joining import bundle_key, make_token

SHORTEST: Final = timedelta(minutes=1)
LONGEST: Final = timedelta(hours=24)


@transaction.atomic
def issue_bundle(content: str, *, lifetime: timedelta, now: datetime, actor: Actor) -> str:
    """Store ``content`` encrypted for one fetch; return the token, which is not stored."""
    lifetime = min(max(lifetime, SHORTEST), LONGEST)
    bundle_id, secret = secrets.token_hex(16), secrets.token_urlsafe(32)
    JoinBundle.objects.filter(expires_at__lte=now).delete()
    JoinBundle.objects.create(
        id=bundle_id,
        sealed=Fernet(bundle_key(secret)).encrypt(content.encode()),
        expires_at=now + lifetime,
    )
    _audit("create", bundle_id, actor)
    return make_token(bundle_id, secret)


def take_bundle(bundle_id: str, *, now: datetime, actor: Actor) -> bytes | None:
    """Return the encrypted bundle and delete it; None if it was taken before or has expired."""
    with transaction.atomic():
        found = JoinBundle.objects.filter(pk=bundle_id, expires_at__gt=now).first()
        # Of two concurrent requests, only one deletes the row.
        if found is None or not JoinBundle.objects.filter(pk=bundle_id).delete()[0]:
            return None
        _audit("take", bundle_id, actor)
    return bytes(found.sealed)


def _audit(verb: str, bundle_id: str, actor: Actor) -> None:
    record(
        actor=actor,
        action=f"join_bundle.{verb}",
        object_type="join bundle",
        object_id=bundle_id[:8],
        object_name="environment of a control host",
    )
