"""Errors for people and scripts, with field, value and remedy."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from tenants.messages import sentence
from tessera.messages import plain

MOST_SHOWN: Final = 200
"""Characters of a path or a value that an error repeats."""
MOST_SAID: Final = 1000
"""Maximum characters of a sentence that quotes user input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One fault of one field.

    Attributes:
        field: path of the field in the request (``roles.worker.devices``); empty for the whole.
        value: the given value; ``None`` if it must not be repeated (passwords, keys).
        message: the fault, one sentence.
        remedy: a valid value, one sentence.
        code: stable code for scripts; if empty, the code of the error with this fault.
    """

    field: str
    value: object = None
    message: str
    remedy: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        """Truncate the repeated value."""
        object.__setattr__(self, "field", cut(self.field, MOST_SHOWN))
        object.__setattr__(self, "message", cut(self.message, MOST_SAID))

    def as_dict(self) -> dict[str, object]:
        """Return one entry of ``errors`` in a problem document."""
        return {
            "field": self.field,
            "value": _plain(self.value),
            "message": self.message,
            "remedy": self.remedy,
        }


class DomainError(Exception):
    """A refused request, with faults that its sender can fix.

    Attributes:
        code: stable code for scripts.
        status: the HTTP status of the response.
        title: a short heading for people.
        retry_after: seconds until the same request may succeed; None if it will not.
        errors: all faults, at least one.
    """

    code: ClassVar[str] = "invalid"
    status: ClassVar[int] = 400
    title: ClassVar[str] = sentence("invalid-request")
    retry_after: int | None = None

    def __init__(
        self,
        message: str = "",
        *,
        field: str = "",
        value: object = None,
        remedy: str = "",
        errors: Iterable[FieldError] = (),
    ) -> None:
        """Build from one fault (``message`` and its parameters) or several (``errors``)."""
        given = tuple(errors)
        if not given:
            given = (
                FieldError(field=field, value=value, message=message or self.title, remedy=remedy),
            )
        self.errors: tuple[FieldError, ...] = given
        alone = given[0].message if len(given) == 1 else ""
        super().__init__(message or alone or "; ".join(error.message for error in given))

    @property
    def message(self) -> str:
        """All faults in one line."""
        return str(self)

    @property
    def field(self) -> str:
        return self.errors[0].field

    @property
    def value(self) -> object:
        return self.errors[0].value

    @property
    def remedy(self) -> str:
        return self.errors[0].remedy

    @classmethod
    def raise_if(cls, errors: Iterable[FieldError]) -> None:
        """Raise one error with all of ``errors``, if there are any."""
        found = tuple(errors)
        if found:
            raise cls(errors=found)

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling (Celery, multiprocessing) with all faults."""
        return (_restore, (type(self), str(self), self.errors))


class InvalidError(DomainError):
    """A value that is not allowed."""


class NotFoundError(DomainError):
    """The row does not exist, or is not visible to the viewer; the error is the same."""

    code = "not-found"
    status = 404
    title: ClassVar[str] = sentence("not-found")


class ForbiddenError(DomainError):
    """The viewer has access to the row but may not perform this action on it."""

    code = "forbidden"
    status = 403
    title: ClassVar[str] = sentence("forbidden")


class ConflictError(DomainError):
    """The request conflicts with stored data."""

    code = "conflict"
    status = 409
    title: ClassVar[str] = sentence("conflict")


class DuplicateError(ConflictError):
    """A name that must be unique is taken."""

    code = "duplicate"
    title: ClassVar[str] = sentence("name-taken")


class StaleEditError(DomainError):
    """Another user changed the row since it was read; nothing was written."""

    code = "stale-edit"
    status = 412
    title: ClassVar[str] = sentence("changed-meanwhile")

    @classmethod
    def of(cls, kind: str, expected: int | None) -> Self:
        """Build the error for the second of two concurrent edits of one ``kind`` of row."""
        return cls(
            sentence("stale-edit", kind=plain(kind)),
            field="version",
            value=expected,
            remedy=sentence("reload-and-repeat"),
        )


def cut(text: str, most: int) -> str:
    """Return ``text``, or its beginning and an ellipsis beyond ``most`` characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def _plain(value: object) -> object:
    if isinstance(value, str):
        return cut(value, MOST_SHOWN)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in list(value)[:50]]
    return _plain(str(value))


def _restore(kind: type[DomainError], message: str, errors: tuple[FieldError, ...]) -> DomainError:
    return kind(message, errors=errors)
