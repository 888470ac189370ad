"""The hash chain over audit rows: each link hashes its row and the previous link.

A link is written in the transaction of its row, as the last statement (``tenants.engines``).
Changed,
deleted, inserted or reordered rows no longer match their links. A person who can rewrite both
tables can forge all links from some row on; heads in logs and backups reveal this.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper

from tenants.models import AuditAnchor, AuditEntry, AuditLink

GENESIS: Final = "0" * 64
FIELDS: Final = tuple(field.attname for field in AuditEntry._meta.concrete_fields)
_LOCK: Final = 0x7E55E7A_AD17
_BATCH: Final = 1_000
_LINKS_AT_ONCE: Final = 300  # parameters of one statement are limited
_NEAR: Final = 50  # range of keys on either side for the search for a moved row
_EXACT: Final = Context(prec=5_000)
_SMALL: Final = 10**15
_text: Final = json.JSONEncoder(ensure_ascii=False).encode
_name: Final = lru_cache(maxsize=4096)(_text)
"""Keys are the names of fields, so the same ones return in each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest link: ``POSITION:HASH`` as text."""

    position: int
    hash: str

    def __str__(self) -> str:
        return f"{self.position}:{self.hash}"

    @classmethod
    def read(cls, text: str) -> "Head":
        """Parse a head.

        Raises:
            ValueError: not a head.
        """
        position, _, digest = text.strip().partition(":")
        if len(digest) != len(GENESIS) or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"not a head of the audit log: {text[:100]!r}")
        return cls(position=int(position), hash=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The first row that does not match."""

    entry_id: int | None
    what: str
    text: str


def extend_chain(database: BaseDatabaseWrapper, entries: Iterable[AuditEntry]) -> None:
    """Link new rows in this transaction, which must commit immediately afterwards."""
    with database.cursor() as cursor:
        if database.vendor == "postgresql":
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        cursor.execute(
            "SELECT position, hash FROM tenants_auditlink ORDER BY position DESC LIMIT 1"
        )
        position, last = cursor.fetchone() or _start(cursor)
        rows = []
        for entry in entries:
            position += 1
            last = link_hash(last, position, {name: getattr(entry, name) for name in FIELDS})
            rows.append((position, entry.pk, last))
        # No executemany: after its pipeline PostgreSQL does not limit the idle time of this
        # transaction, and a process frozen before the commit would hold the lock indefinitely.
        for begin in range(0, len(rows), _LINKS_AT_ONCE):
            some = rows[begin : begin + _LINKS_AT_ONCE]
            values = ", ".join(["(%s, %s, %s)"] * len(some))
            cursor.execute(
                f"INSERT INTO tenants_auditlink (position, entry_id, hash) VALUES {values}",  # noqa: S608 placeholders
                [value for row in some for value in row],
            )


def link_hash(previous: str, position: int, values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the previous link and of the row as canonical JSON."""
    text = f"{previous}\n{position}\n{canonical(values)}"
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: Any) -> str:
    """Return JSON that is the same before and after the database has stored it.

    Keys are sorted; numbers have one form, since PostgreSQL stores 1e16 as 10000000000000000.
    """
    if type(value) is str:
        return _text(value)
    if isinstance(value, Mapping):
        pairs = sorted((str(key), inner) for key, inner in value.items())
        return "{" + ",".join(f"{_name(key)}:{canonical(inner)}" for key, inner in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(canonical(inner) for inner in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, datetime):
        value = value.astimezone(UTC).isoformat(timespec="microseconds")
    return _text(str(value))


def head() -> Head:
    """Return the newest link, or the start of an empty chain."""
    link = AuditLink.objects.order_by("-position").first()
    if link is not None:
        return Head(position=link.position, hash=link.hash)
    anchor = AuditAnchor.objects.order_by("-position").first()
    return Head(position=anchor.position, hash=anchor.hash) if anchor else _EMPTY


_EMPTY: Final = Head(position=0, hash=GENESIS)


def verify(published: Head | None = None) -> Broken | None:
    """Check every row and link that was not pruned.

    Args:
        published: a head from a log or a backup; it must be in the chain, or be pruned.

    Returns:
        The first row that does not match, or None.
    """
    anchor = AuditAnchor.objects.order_by("-position").first()
    start = Head(position=anchor.position, hash=anchor.hash) if anchor else _EMPTY
    at = start
    pruned_by_record = anchor is None
    for link, values in _linked():
        broken = _check(at, link, values)
        if broken is not None:
            return broken
        at = Head(position=link.position, hash=link.hash)
        if published is not None and at.position == published.position and at != published:
            return _rewritten(link.entry_id, published)
        pruned_by_record = pruned_by_record or _records_pruning_of(values, start)
    return (
        _unlinked()
        or (None if pruned_by_record else _unrecorded(start))
        or (_cut(at, published) if published and published.position > at.position else None)
    )


def _check(at: Head, link: AuditLink, values: Mapping[str, Any] | None) -> Broken | None:
    if link.position != at.position + 1:
        text = f"links {at.position + 1} to {link.position - 1} before it are missing"
        return _broken(link.entry_id, "deleted", text)
    if values is None:
        return _broken(link.entry_id, "deleted", "the row is missing")
    if link.hash == link_hash(at.hash, link.position, values):
        return None
    text = _other_place(at, link)
    if text:
        return _broken(link.entry_id, "reordered", text)
    return _broken(link.entry_id, "changed", "the row does not fit its hash")


def _other_place(at: Head, link: AuditLink) -> str:
    """Return the evidence that a mismatching row was reordered; empty without evidence nearby."""
    near = range(link.entry_id - _NEAR, link.entry_id + _NEAR + 1)
    rows = {row["id"]: row for row in AuditEntry._base_manager.filter(pk__in=near).values(*FIELDS)}
    for key, row in rows.items():
        fitting = (row, {**row, "id": link.entry_id})
        if link.hash in {link_hash(at.hash, link.position, values) for values in fitting}:
            return f"its position contains the values of row {key}"
    for other in AuditLink.objects.filter(entry_id__in=near).exclude(pk=link.pk):
        values = rows.get(other.entry_id)
        if values and other.hash == link_hash(at.hash, link.position, values):
            return f"row {other.entry_id} belongs before it"
    return ""


def _linked() -> Iterator[tuple[AuditLink, Mapping[str, Any] | None]]:
    """Return every link in order with its row, if it exists."""
    links = AuditLink.objects.order_by("position").iterator(chunk_size=_BATCH)
    while batch := list(islice(links, _BATCH)):
        keys = [link.entry_id for link in batch]
        rows = AuditEntry._base_manager.filter(pk__in=keys).values(*FIELDS)
        found = {row["id"]: row for row in rows}
        for link in batch:
            yield link, found.get(link.entry_id)


def _unlinked() -> Broken | None:
    rows = AuditEntry._base_manager.exclude(pk__in=AuditLink.objects.values("entry_id")).order_by(
        "pk"
    )
    row = rows.first()
    return None if row is None else _broken(row.pk, "inserted", "it has no link")


def _records_pruning_of(values: Mapping[str, Any] | None, start: Head) -> bool:
    """Return whether a row is the record of the pruning that the remaining rows follow."""
    if values is None or values["action"] != "audit.prune":
        return False
    after: Mapping[str, Any] = values["after"]
    return (after.get("position"), after.get("hash")) == (start.position, start.hash)


def _unrecorded(start: Head) -> Broken:
    text = f"The rows up to link {start.position} were deleted without an audit.prune row."
    return Broken(entry_id=None, what="deleted", text=text)


def _cut(at: Head, published: Head) -> Broken:
    text = (
        f"The chain ends at link {at.position}; the published head is link {published.position}."
    )
    return Broken(entry_id=None, what="cut", text=text)


def _rewritten(entry_id: int, published: Head) -> Broken:
    return _broken(
        entry_id, "changed", (f"link {published.position} differs from the published link")
    )


def _broken(entry_id: int, what: str, why: str) -> Broken:
    return Broken(entry_id=entry_id, what=what, text=f"Audit row {entry_id} was {what}: {why}.")


def _start(cursor: Any) -> tuple[int, str]:
    cursor.execute("SELECT position, hash FROM tenants_auditanchor ORDER BY position DESC LIMIT 1")
    found: tuple[int, str] = cursor.fetchone() or (0, GENESIS)
    return found


def _number(value: float) -> str:
    if abs(value) < _SMALL and value == int(value):
        return str(int(value))
    return str(Decimal(repr(value)).normalize(_EXACT))
