"""Errors that people and scripts can act on: which field, which value, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from tenants.messages import sentence
from tessera.messages import plain

MOST_SHOWN: Final = 200
"""Characters of a path or a value that an error repeats."""
MOST_SAID: Final = 1000
"""Characters of a sentence: of those that name what was given, which may be of any length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One thing that is wrong with one field.

    Attributes:
        field: path of the field in the request (``roles.worker.devices``); empty for the whole.
        value: what was given; ``None`` where it must not be repeated (passwords, keys).
        message: what is wrong, one sentence.
        remedy: what would be right, one sentence.
        code: stable word for scripts; empty means the code of the error that carries this one.
    """

    field: str
    value: object = None
    message: str
    remedy: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        """Cut what repeats more than a reader wants to see of what was given."""
        object.__setattr__(self, "field", cut(self.field, MOST_SHOWN))
        object.__setattr__(self, "message", cut(self.message, MOST_SAID))

    def as_dict(self) -> dict[str, object]:
        """The shape of one entry of ``errors`` in a problem document."""
        return {
            "field": self.field,
            "value": _plain(self.value),
            "message": self.message,
            "remedy": self.remedy,
        }


class DomainError(Exception):
    """A request that cannot be done, said so that its sender can change it.

    Attributes:
        code: stable word for scripts.
        status: the HTTP status that a face should answer with.
        title: a short heading for people.
        retry_after: seconds after which the same request may succeed; None where it will not.
        errors: everything that was wrong, at least one entry.
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
        """Carry one fault (``message`` and the words after it) or several (``errors``)."""
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
        """Field of the first fault."""
        return self.errors[0].field

    @property
    def value(self) -> object:
        """Value of the first fault."""
        return self.errors[0].value

    @property
    def remedy(self) -> str:
        """Remedy of the first fault."""
        return self.errors[0].remedy

    @classmethod
    def raise_if(cls, errors: Iterable[FieldError]) -> None:
        """Raise one error that carries all of ``errors``, or do nothing when there are none."""
        found = tuple(errors)
        if found:
            raise cls(errors=found)

    def __reduce__(self) -> tuple[object, ...]:
        """Travel through pickles (Celery, multiprocessing) with all faults."""
        return (_restore, (type(self), str(self), self.errors))


class InvalidError(DomainError):
    """A value that is not allowed."""


class NotFoundError(DomainError):
    """No such row, or none that the viewer may know of; the two are never told apart."""

    code = "not-found"
    status = 404
    title: ClassVar[str] = sentence("not-found")


class ForbiddenError(DomainError):
    """The viewer sees the row but may not do this to it."""

    code = "forbidden"
    status = 403
    title: ClassVar[str] = sentence("forbidden")


class ConflictError(DomainError):
    """The request contradicts what is stored."""

    code = "conflict"
    status = 409
    title: ClassVar[str] = sentence("conflict")


class DuplicateError(ConflictError):
    """A name that must be unique is taken."""

    code = "duplicate"
    title: ClassVar[str] = sentence("name-taken")


class StaleEditError(DomainError):
    """Somebody else changed the row since it was read; nothing was written."""

    code = "stale-edit"
    status = 412
    title: ClassVar[str] = sentence("changed-meanwhile")

    @classmethod
    def of(cls, kind: str, expected: int | None) -> Self:
        """The error for the loser of two edits of one ``kind`` of row."""
        return cls(
            sentence("stale-edit", kind=plain(kind)),
            field="version",
            value=expected,
            remedy=sentence("reload-and-repeat"),
        )


def cut(text: str, most: int) -> str:
    """``text``, or its beginning and an ellipsis where it is longer than ``most`` characters."""
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
