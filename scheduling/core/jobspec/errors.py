"""Errors of a document: each with its field, value and remedy."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduling.core.messages import sentence

MAX_ERRORS: Final = 100
HIDDEN: Final = "(not shown)"

_SHOWN_CHARS: Final = 80
NOTHING: Final = "nothing"
_WORDS: Final = {"None": NOTHING, "True": "true", "False": "false"}
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_./-]{1,64}", re.ASCII)
TELLTALE: Final = re.compile(r"secret|passw|token|auth|credential|private|api_?key", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One error in a document.

    Attributes:
        field: path of the field, such as ``roles.worker.devices``; empty for the document.
        value: the given value, shortened; never a secret.
        message: the error, as a sentence.
        remedy: the correction, as a sentence.
        code: stable error code: missing-field, unknown-field, wrong-type, out-of-range,
            malformed, too-long, reserved-name, conflict, duplicate, unsupported-field.
    """

    field: str
    value: str
    message: str
    remedy: str
    code: str

    @property
    def value_or_none(self) -> str | None:
        """The value as it is shown to scripts: None where nothing was given."""
        return None if self.value in {"", NOTHING} else self.value

    def to_json(self) -> dict[str, str | None]:
        """Return the error in the form of the REST API; ``value`` is null if there is none."""
        return {
            "field": self.field,
            "value": self.value_or_none,
            "message": self.message,
            "remedy": self.remedy,
            "code": self.code,
        }


class InvalidDocumentError(ValueError):
    """A document was refused completely; no changes were made.

    Attributes:
        errors: all errors, in the order of the document.
    """

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__(
            "; ".join(
                f"{error.field or 'document'}: {error.message} (got {error.value}) {error.remedy}"
                for error in self.errors
            )
        )

    @property
    def code(self) -> str:
        """Reason code of the refusal: unsupported-field if there are no other errors."""
        kinds = {error.code for error in self.errors}
        return "unsupported-field" if kinds == {"unsupported-field"} else "invalid-spec"


class InvalidJobSpecError(InvalidDocumentError):
    """A job specification was refused; ``errors`` contains all reasons."""


class RefusalError(Exception):
    """Raised by the reader of one value; its caller adds the field."""

    def __init__(
        self, message: str, remedy: str, code: str = "malformed", *, shown: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
        self.shown = shown


@dataclass(frozen=True, slots=True)
class DocumentPlace:
    """Position in a document during parsing, with the shared list of errors.

    Attributes:
        path: path of the field.
        errors: errors of the document, shared by all its places.
        hidden: whether values below this path are secrets.
        redacted: whether the document is a stored one without its secrets.
        ignores_unknown: whether unknown fields are ignored; the next release may store some.
    """

    path: str = ""
    errors: list[FieldError] = field(default_factory=list)
    hidden: bool = False
    redacted: bool = False
    ignores_unknown: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the list of errors is full, so that further errors are dropped."""
        return len(self.errors) >= MAX_ERRORS

    def child(self, key: object, *, hidden: bool = False) -> "DocumentPlace":
        """Return the place of ``key`` below this one."""
        name = show_key(key)
        path = f"{self.path}.{name}" if self.path else name
        return self._at(path, hidden=self.hidden or hidden)

    def item(self, index: int) -> "DocumentPlace":
        """Return the place of one element of a list."""
        return self._at(f"{self.path}[{index}]", hidden=self.hidden)

    def _at(self, path: str, *, hidden: bool) -> "DocumentPlace":
        return DocumentPlace(path, self.errors, hidden, self.redacted, self.ignores_unknown)

    def refuse(self, value: object, message: str, remedy: str, code: str = "malformed") -> None:
        """Add an error about ``value`` at this place; errors after the first 100 are dropped."""
        self.note(value, RefusalError(message, remedy, code))

    def note(self, value: object, refusal: RefusalError) -> None:
        """Record the error of a value reader at this place."""
        if self.is_full:
            return
        shown = refusal.shown if refusal.shown is not None else show(value)
        self.errors.append(
            FieldError(
                field=self.path,
                value=HIDDEN if self.hidden else shown,
                message=refusal.message,
                remedy=refusal.remedy,
                code=refusal.code,
            )
        )


def show(value: object) -> str:
    """Format ``value`` for people: short, one line, encodable; containers as kind and size."""
    if isinstance(value, str):
        text = json.dumps(shortened(value), ensure_ascii=False)
    elif isinstance(value, Mapping):
        text = f"an object with {_count(len(value), 'key')}"
    elif isinstance(value, list | tuple | set | frozenset):
        text = f"a list of {len(value)}"
    elif isinstance(value, int) and value.bit_length() > 256:
        text = "a number with too many digits"
    else:
        text = _WORDS.get(str(value)) or shortened(str(value))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def show_key(key: object) -> str:
    """Format a key as part of a path: unchanged if plain, otherwise quoted and shortened."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return key
    return show(key)


def may_be_secret(key: object) -> bool:
    """Return whether the name of an unknown key suggests that its value is secret."""
    return bool(TELLTALE.search(str(key)[:200]))


def kind_of(value: object) -> str:
    """Return the kind of ``value`` in the terms of a document."""
    if value is None:
        return sentence("kind-nothing")
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, sentence("kind-bool")),
        (int, sentence("kind-int")),
        (float, sentence("kind-fraction")),
        (str, sentence("kind-text")),
        (Mapping, sentence("kind-object")),
        ((list, tuple), sentence("kind-list")),
    )
    return next(
        (name for kinds, name in names if isinstance(value, kinds)), sentence("kind-other")
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortened(text: str) -> str:
    """Shorten long ``text`` and append its length, since errors repeat user input."""
    if len(text) <= _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]}… ({len(text)} characters)"
