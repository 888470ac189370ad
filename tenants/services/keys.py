"""Changes of the installation's keys. Every step is idempotent, so an interrupted one repeats."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import QuerySet

from tenants.audit import Actor, record
from tenants.keyring import PURPOSE, SshKey, UnreadableKeyError, forget_keys, seal_secrets
from tenants.models import InstallationKey
from tenants.sealing import is_sealed_with, sealer
from tenants.viewers import Viewer

Kind = InstallationKey.Kind
State = InstallationKey.State
_NAMES: Final = {Kind.SECRET: "secret key", Kind.SSH: "SSH key", Kind.INSTALLATION: "installation"}


def key_row(kind: InstallationKey.Kind, state: InstallationKey.State) -> InstallationKey | None:
    """Return the newest key of a kind in a state."""
    return InstallationKey.objects.filter(kind=kind, state=state).order_by("-id").first()


def store_first_key(
    kind: InstallationKey.Kind, *, private: str, public: str = "", now: datetime
) -> bool:
    """Store the first key of a kind; return False if there is one already."""
    sealed = sealer(PURPOSE, seal_secrets()).encrypt(private.encode()) if private else b""
    with transaction.atomic():
        # Two hosts may be set up at once; the constraint would end one of them with an error.
        _, is_new = InstallationKey.objects.get_or_create(
            kind=kind,
            state=State.CURRENT,
            defaults={
                "sealed": sealed, "public": public, "created_at": now, "changed_at": now,
            },
        )  # fmt: skip
    forget_keys()
    return is_new


def replace_ssh_key(new: SshKey, *, now: datetime, actor: Actor | Viewer) -> bool:
    """Make ``new`` the current SSH key and retain the earlier ones for nodes without it.

    Returns:
        False if a rotation is still in progress; nothing was changed.

    Raises:
        UnreadableKeyError: the key is still in a file only.
    """
    with transaction.atomic():
        _require_current(Kind.SSH)
        current = InstallationKey.objects.filter(kind=Kind.SSH, state=State.CURRENT)
        if InstallationKey.objects.filter(kind=Kind.SSH, state=State.OLD).exists():
            return False
        # Two concurrent rotations: the second one finds no current key, or breaks the constraint.
        if not current.update(state=State.OLD, changed_at=now):
            return False
        row = _create(Kind.SSH, State.CURRENT, private=new.private, public=new.public, now=now)
        _audit("replace", row, actor)
    forget_keys()
    return True


def drop_ssh_keys(publics: Collection[str], *, actor: Actor | Viewer) -> int:
    """Delete stored SSH keys that no node needs any more; return their number.

    Args:
        publics: their public keys.
        actor: the actor of the audit row.
    """
    found = InstallationKey.objects.filter(kind=Kind.SSH, public__in=list(publics))
    return _drop(found, actor)


def store_next_secret_key(
    private: str, *, now: datetime, actor: Actor | Viewer
) -> InstallationKey:
    """Store the next secret key, which all processes accept from now on.

    Returns:
        The next key; an earlier one if a rotation was interrupted.

    Raises:
        UnreadableKeyError: the current key is still in a file only.
    """
    with transaction.atomic():
        _require_current(Kind.SECRET)
        earlier = key_row(Kind.SECRET, State.NEXT)
        if earlier is not None:
            return earlier
        row = _create(Kind.SECRET, State.NEXT, private=private, public="", now=now)
        _audit("add", row, actor)
    forget_keys()
    return row


def promote_secret_key(*, now: datetime, actor: Actor | Viewer) -> bool:
    """Use the next secret key; the current one remains accepted. False if there is no next one."""
    with transaction.atomic():
        found = key_row(Kind.SECRET, State.NEXT)
        if found is None:
            return False
        rows = InstallationKey.objects.filter(kind=Kind.SECRET)
        # Another host may have promoted the same key since the read: then it is the current one.
        current = rows.filter(state=State.CURRENT).exclude(pk=found.pk)
        current.update(state=State.OLD, changed_at=now)
        promoted = rows.filter(pk=found.pk, state=State.NEXT)
        if not promoted.update(state=State.CURRENT, changed_at=now):
            return False
        _audit("promote", found, actor)
    forget_keys()
    return True


def drop_old_secret_keys(*, before: datetime, actor: Actor | Viewer) -> int:
    """Delete secret keys that were replaced before an instant; return their number.

    Sessions and other values that were signed only with them are no longer valid.
    """
    old = InstallationKey.objects.filter(kind=Kind.SECRET, state=State.OLD, changed_at__lt=before)
    return _drop(old, actor)


def reseal_keys() -> int:
    """Seal the stored keys with the first seal secret; return the number of changed rows."""
    seal = seal_secrets()
    changed = 0
    for row in InstallationKey.objects.exclude(sealed=b"").order_by("id"):
        sealed = bytes(row.sealed)
        if not is_sealed_with(PURPOSE, seal[0], sealed):
            fresh = sealer(PURPOSE, seal).rotate(sealed)
            changed += InstallationKey.objects.filter(pk=row.pk, sealed=sealed).update(
                sealed=fresh
            )
    return changed


def _require_current(kind: InstallationKey.Kind) -> None:
    """Refuse to rotate a key that only a file contains: with the new row, the file is not read."""
    if key_row(kind, State.CURRENT) is None:
        raise UnreadableKeyError(
            f"the {_NAMES[kind]} is not in the database yet; run manage.py set_up"
        )


def _create(
    kind: InstallationKey.Kind,
    state: InstallationKey.State,
    *,
    private: str,
    public: str,
    now: datetime,
) -> InstallationKey:
    return InstallationKey.objects.create(
        kind=kind,
        state=state,
        sealed=sealer(PURPOSE, seal_secrets()).encrypt(private.encode()),
        public=public,
        created_at=now,
        changed_at=now,
    )


def _drop(rows: QuerySet[InstallationKey], actor: Actor | Viewer) -> int:
    with transaction.atomic():
        found = list(rows)
        for row in found:
            _audit("drop", row, actor)
        InstallationKey.objects.filter(pk__in=[row.pk for row in found]).delete()
    if found:
        forget_keys()
    return len(found)


def _audit(verb: str, row: InstallationKey, actor: Actor | Viewer) -> None:
    kind = InstallationKey.Kind(row.kind)
    record(
        actor=actor,
        action=f"{kind}_key.{verb}",
        object_type="installation key",
        object_id=row.pk,
        object_name=_NAMES[kind],
        after={"public": row.public} if row.public else None,
    )
