"""Responses of the REST API as frozen values; ``body`` is the unchanged response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

Body = Mapping[str, Any]

TERMINAL_STATES = frozenset({"succeeded", "failed", "stopped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the API shows it."""

    id: int
    name: str
    state: str
    user: str
    virtual_cluster: str
    submitted_at: str
    warnings: tuple[str, ...]
    body: Body

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Parse a response of ``/jobs/``; fields that are missing in lists become empty."""
        return cls(
            id=int(body["id"]),
            name=_text(body, "name"),
            state=_text(body, "state"),
            user=_text(body, "user"),
            virtual_cluster=_text(body, "virtual_cluster"),
            submitted_at=_text(body, "submitted_at"),
            warnings=texts(body.get("warnings")),
            body=body,
        )

    @property
    def has_ended(self) -> bool:
        """Return whether the job is in a final state."""
        return self.state in TERMINAL_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Reasons for a job's state, and remedies.

    Attributes:
        blocked_by: visible jobs; ``blocked_by_others`` counts the rest.
        no_eta: reason without a start estimate: ``text`` and ``jobs`` without a time limit.
        pending: fields of ``steps`` and ``eta`` that are still being computed.
    """

    code: str
    text: str
    blocked_by: tuple[str, ...]
    blocked_by_others: int
    unblock: tuple[str, ...]
    eta: Mapping[str, Any] | None
    no_eta: Mapping[str, Any] | None
    pending: tuple[str, ...]
    body: Body

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Parse a response of ``/jobs/{id}/why/``."""
        return cls(
            code=_text(body, "code"),
            text=_text(body, "text"),
            blocked_by=texts(body.get("blocked_by")),
            blocked_by_others=int(body.get("blocked_by_others") or 0),
            unblock=texts(body.get("unblock")),
            eta=body.get("eta"),
            no_eta=body.get("no_eta"),
            pending=texts(body.get("pending")),
            body=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A dry run: whether and on which devices a job would run; nothing was submitted."""

    fits: str
    code: str
    text: str
    starts: Mapping[str, Any] | None
    no_starts: Mapping[str, Any] | None
    placement: Any
    warnings: tuple[str, ...]
    body: Body

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Parse a response of ``/jobs/plan/``."""
        reason = body.get("reason") or {}
        return cls(
            fits=_text(body, "fits"),
            code=_text(reason, "code"),
            text=_text(reason, "text"),
            starts=body.get("starts"),
            no_starts=body.get("no_starts"),
            placement=body.get("placement"),
            warnings=texts(body.get("warnings")),
            body=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """A piece of a log.

    Attributes:
        text: whole characters.
        next_offset: start of the next piece, in bytes.
        size: bytes of the log so far.
        end: the log is complete.
        attempt: number of the attempt; 0 before the first.
    """

    text: str
    next_offset: int
    size: int
    end: bool
    attempt: int

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Parse a response of ``/jobs/{id}/logs/``."""
        return cls(
            text=_text(body, "text"),
            next_offset=int(body["next_offset"]),
            size=int(body["size"]),
            end=bool(body["end"]),
            attempt=int(body.get("attempt") or 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as the API shows it."""

    id: int
    name: str
    host: str
    port: int
    state: str
    reason: str
    body: Body
    isolation_level: str = ""
    owner: str = ""

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Parse a response of ``/nodes/``."""
        isolation = body.get("isolation") or {}
        return cls(
            id=int(body["id"]),
            name=_text(body, "name"),
            host=_text(body, "host"),
            port=int(body.get("port") or 22),
            state=_text(body, "state"),
            reason=_text(body, "state_reason") or _text(body, "reason"),
            body=body,
            isolation_level=_text(isolation, "level"),
            owner=_text(isolation, "owner"),
        )


def types_of_node(body: Body) -> tuple[str, ...]:
    """Return the device types in the response for a node, the most frequent first."""
    kinds = [str(found["type"]) for found in body.get("types") or ()]
    return tuple(kinds or ([str(body["device_type"])] if body.get("device_type") else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCluster:
    """A virtual cluster as the API shows it; ``cells`` and ``pinned`` are its guarantee."""

    id: int
    name: str
    tenant: str
    policy: str
    cells: tuple[Mapping[str, Any], ...]
    pinned: tuple[Mapping[str, Any], ...]
    body: Body

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Parse a response of ``/virtual-clusters/``."""
        return cls(
            id=int(body["id"]),
            name=_text(body, "name"),
            tenant=_text(body, "tenant"),
            policy=_text(body, "policy"),
            cells=tuple(body.get("cells") or ()),
            pinned=tuple(body.get("pinned") or ()),
            body=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A new token; ``key`` is shown only once."""

    id: int
    key: str
    prefix: str
    scopes: tuple[str, ...]
    expires_at: str
    body: Body

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Parse the response to the creation of a token."""
        return cls(
            id=int(body["id"]),
            key=_text(body, "key"),
            prefix=_text(body, "prefix"),
            scopes=texts(body.get("scopes")),
            expires_at=_text(body, "expires_at"),
            body=body,
        )


def texts(values: Any) -> tuple[str, ...]:
    """Return entries as texts, from strings or objects with a ``text`` or ``message``."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return ()
    return tuple(_in_words(value) for value in values)


def _in_words(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    words = value.get("text") or value.get("message") or value.get("name") or value.get("code")
    field = value.get("field")
    return f"{field}: {words}" if field and words else str(words or dict(value))


def _text(body: Body, name: str) -> str:
    """Return a field as text; of an object, its ``name``."""
    value = body.get(name)
    if isinstance(value, Mapping):
        value = value.get("name") or value.get("username")
    return "" if value is None else str(value)


TRANSLATED: Final = "Translated"
LEFT_OUT: Final = "Left out"
NOT_SUPPORTED: Final = "Not supported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """The remarks of an import under one heading.

    Attributes:
        heading: ``TRANSLATED`` (has a slightly different meaning here), ``LEFT_OUT`` (without
            effect on the job) or ``NOT_SUPPORTED`` (with an effect).
        entries: pairs of a field, or an empty text, and a sentence.
    """

    heading: str
    entries: tuple[tuple[str, str], ...]


def remarks_of(answer: Body) -> tuple[Remarks, ...]:
    """Return the remarks in the response of an import, without empty headings."""
    return tuple(
        Remarks(
            heading=str(remarks["heading"]),
            entries=tuple((str(one["field"]), str(one["message"])) for one in remarks["entries"]),
        )
        for remarks in answer["remarks"]
    )
