"""Audit of changes: one row per change, written in the transaction of the change itself."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any, Final, Self

from django.db import models, transaction

from tenants.audit_chain import extend_chain
from tenants.clock import database_now
from tenants.engines.chaining import BeforeCommit
from tenants.models import AuditEntry, Tenant
from tenants.viewers import Viewer

MASK: Final = "[masked]"
ONCE_PER: Final = timedelta(hours=1)
"""Minimum interval between audit rows of repeated reads, such as of a followed log."""
_CUT: Final = 2_000  # maximum length of one text
_DEPTH: Final = 8
_ITEMS: Final = 200  # maximum entries of one list or mapping
_SECRET_PARTS: Final = (
    "password", "passwd", "passphrase", "secret", "credential", "privatekey", "apikey",
    "accesskey", "authorization", "cookie", "digest",
)  # fmt: skip
_SECRET_ENDS: Final = ("token", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The actor of an audit row.

    Attributes:
        user_id: row of the user; None for the system.
        name: user name, or the part of the system that acted (``beat``, ``tessera up``).
        token_prefix: public part of the token; empty without one.
    """

    user_id: int | None
    name: str
    token_prefix: str = ""

    @classmethod
    def of(cls, viewer: Viewer) -> Self:
        """Return the actor for changes by a viewer."""
        return cls(user_id=viewer.user_id, name=viewer.username, token_prefix=viewer.token_prefix)

    @classmethod
    def system(cls, name: str) -> Self:
        """Return the actor of a part of the system."""
        return cls(user_id=None, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditContext:
    """Facts of the request, for code without access to it."""

    request_id: str = ""
    actor: Actor | None = None


_context: ContextVar[AuditContext] = ContextVar("tessera_audit_context", default=AuditContext())  # noqa: B039 frozen


@contextmanager
def audit_context(*, request_id: str = "", actor: Actor | None = None) -> Iterator[AuditContext]:
    """Set the request (or task) and its actor for every ``record`` inside the block."""
    context = AuditContext(request_id=request_id, actor=actor)
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def bind_actor(actor: Actor | Viewer) -> None:
    """Set the actor of the current request after authentication."""
    found = Actor.of(actor) if isinstance(actor, Viewer) else actor
    _context.set(replace(_context.get(), actor=found))


def current_actor() -> Actor | None:
    """Return the actor of the current request or task, if set."""
    return _context.get().actor


def current_request_id() -> str:
    """Return the id of the current request or task; empty outside of one."""
    return _context.get().request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditChange:
    """One change to record; the arguments of ``record`` for a row that changed.

    Attributes:
        obj: the changed row.
        tenant: id of the tenant whose leads may read the record.
    """

    action: str
    obj: models.Model
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    tenant: int | None = None
    message: str = ""


def record(
    *,
    actor: Actor | Viewer | None = None,
    action: str,
    obj: models.Model | None = None,
    object_type: str = "",
    object_id: object = "",
    object_name: str = "",
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    tenant: Tenant | int | None = None,
    message: str = "",
) -> AuditEntry:
    """Add one audit row; call it in the transaction that makes the change.

    Args:
        actor: by default the actor of the current request, otherwise ``system``.
        action: ``<object>.<verb>``, for example ``tenant.archive``.
        obj: the changed row; provides the next three where empty.
        object_type: kind of object, for objects that are not rows.
        object_id: key of the object.
        object_name: display name of the object.
        before: old values of the changed fields (see ``changed``).
        after: new values of the changed fields.
        tenant: its leads may read the row; None for cluster admins only.
        message: a reason given by a person.

    Returns:
        The stored row. Secrets are masked by the name of their key, long texts are cut.
    """
    entry = _entry(
        who=_who(actor),
        action=action,
        object_type=object_type or _type_of(obj),
        object_id=object_id if obj is None else object_id or obj.pk,
        object_name=object_name if obj is None else object_name or str(obj),
        before=before,
        after=after,
        tenant_id=tenant.pk if isinstance(tenant, Tenant) else tenant,
        message=message,
    )
    with _one_transaction():
        AuditEntry._base_manager.bulk_create([entry])
        _link_at_commit(entry)
    return entry


def record_once(
    *,
    actor: Viewer,
    action: str,
    object_type: str,
    object_id: object,
    object_name: str,
    tenant: int | None = None,
    after: Mapping[str, object] | None = None,
) -> None:
    """Add a row like ``record``, unless the same actor did the same within ``ONCE_PER``."""
    earlier = AuditEntry._base_manager.filter(
        object_type=object_type,
        object_id=str(object_id),
        action=action,
        actor_id=actor.user_id,
        at__gte=database_now() - ONCE_PER,
    )
    if not earlier.exists():
        record(
            actor=actor,
            action=action,
            object_type=object_type,
            object_id=object_id,
            object_name=object_name,
            tenant=tenant,
            after=after,
        )


def record_many(*, actor: Actor | Viewer | None = None, changes: Iterable[AuditChange]) -> None:
    """Add the rows of many changes in one statement; otherwise like ``record``."""
    who = _who(actor)
    entries = [
        _entry(
            who=who,
            action=change.action,
            object_type=_type_of(change.obj),
            object_id=change.obj.pk,
            object_name=str(change.obj),
            before=change.before,
            after=change.after,
            tenant_id=change.tenant,
            message=change.message,
        )
        for change in changes
    ]
    with _one_transaction():
        for entry in AuditEntry._base_manager.bulk_create(entries):
            _link_at_commit(entry)


def _one_transaction() -> AbstractContextManager[object]:
    """Use the transaction of the caller, or a new one for the rows and their links."""
    return nullcontext() if transaction.get_connection().in_atomic_block else transaction.atomic()


def _link_at_commit(entry: AuditEntry) -> None:
    transaction.on_commit(BeforeCommit(extend_chain, entry))


def _type_of(obj: models.Model | None) -> str:
    return "" if obj is None else str(obj._meta.model_name)


def _who(actor: Actor | Viewer | None) -> Actor:
    who = actor or current_actor() or Actor.system("system")
    return Actor.of(who) if isinstance(who, Viewer) else who


def _entry(
    *,
    who: Actor,
    action: str,
    object_type: str,
    object_id: object,
    object_name: str,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    tenant_id: int | None,
    message: str,
) -> AuditEntry:
    return AuditEntry(
        actor_id=who.user_id,
        actor_name=_storable(who.name)[:150] or "system",
        token_prefix=who.token_prefix,
        action=action[:64],
        object_type=object_type[:64],
        object_id=_storable(str(object_id))[:64],
        object_name=_storable(object_name)[:200],
        tenant_id=tenant_id,
        before=masked(before or {}),
        after=masked(after or {}),
        request_id=current_request_id()[:64],
        message=_storable(message)[:1000],
    )


def changed(
    before: Mapping[str, object], after: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the differing entries before and after, including keys of one side only."""
    absent = object()
    keys = [
        key
        for key in dict.fromkeys([*before, *after])
        if before.get(key, absent) != after.get(key, absent)
    ]
    return (
        {key: before[key] for key in keys if key in before},
        {key: after[key] for key in keys if key in after},
    )


def masked(values: Mapping[str, object]) -> dict[str, object]:
    """Return ``values`` as plain JSON, with secrets replaced by ``[masked]`` at any depth.

    A key that looks like a secret (``password``, ``apiKey``, ``registry_token``) masks all values
    below it. Numbers named tokens are counts and are not masked.
    """
    return _masked_mapping(values, 0)


def _masked_mapping(values: Mapping[Any, object], depth: int) -> dict[str, object]:
    kept = list(values.items())[:_ITEMS]
    return {
        _storable(str(key))[:200]: MASK if _hides(str(key), value) else _plain(value, depth + 1)
        for key, value in kept
    }


def _hides(key: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return False
    word = "".join(letter for letter in key.casefold() if letter.isalnum())
    if any(part in word for part in _SECRET_PARTS):
        return True
    return word.endswith(_SECRET_ENDS) and not isinstance(value, int | float)


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        # JSON has neither infinity nor NaN, and PostgreSQL refuses them.
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping) and depth < _DEPTH:
        return _masked_mapping(value, depth)
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEPTH:
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        return [_plain(item, depth + 1) for item in items[:_ITEMS]]
    text = _storable(_words(value))
    return text if len(text) <= _CUT else text[:_CUT] + "…"


def _words(value: object) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value.value if isinstance(value, Enum) else value)


def _storable(text: str) -> str:
    # PostgreSQL stores neither NUL nor surrogates; both come from hostile JSON.
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return whole.replace("\x00", "\N{REPLACEMENT CHARACTER}")
