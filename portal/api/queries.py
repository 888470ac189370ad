"""Validation of query parameters and timestamps."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from django.http import QueryDict

from scheduling.common.paging import DEFAULT_ROWS, MOST_ROWS
from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import read_instant
from tenants.errors import FieldError, InvalidError

LONGEST_VALUE: Final = 1000
_FLAGS: Final[Mapping[str, bool]] = {"1": True, "true": True, "0": False, "false": False, "": True}


def instant_from(field: str, given: str, *, meant: str = "") -> datetime:
    """Parse a timestamp.

    Args:
        field: name of the field, for the error.
        given: the value as sent, for the error.
        meant: the text to parse, if it differs from ``given``.

    Raises:
        InvalidError: the text is not a timestamp with an offset.
    """
    try:
        return read_instant(meant or given)
    except RefusalError as refusal:
        raise InvalidError(
            f"This {refusal.message}", field=field, value=given, remedy=refusal.remedy
        ) from None


def instant_in_query(query: QueryDict, name: str) -> datetime | None:
    """Parse the timestamp in a query parameter; return None if the parameter is missing.

    Raises:
        InvalidError: the value is not a timestamp with an offset.
    """
    given = query.get(name)
    # An unescaped plus sign in a query string is decoded as a space.
    return instant_from(name, given, meant=given.replace(" ", "+")) if given else None


def instant(field: str, value: str | None) -> datetime | None:
    """Parse the timestamp in a field of a body; return None for null.

    Raises:
        InvalidError: the value is not a timestamp with an offset.
    """
    if value is None:
        return None
    try:
        return read_instant(value)
    except RefusalError as refusal:
        raise InvalidError(
            "This is not a valid time.", field=field, value=value, remedy=refusal.remedy
        ) from None


class Query:
    """The query parameters of one request.

    Attributes:
        given: the parameters as sent.
    """

    def __init__(self, given: QueryDict, known: Iterable[str]) -> None:
        """Check the names and lengths of the parameters.

        Raises:
            InvalidError: a name is not in ``known``, or a value is too long. The error lists all
                faults.
        """
        names = sorted(known)
        InvalidError.raise_if(
            FieldError(
                field=name,
                value=given.get(name),
                message="This address does not support this parameter.",
                remedy=f"Use any of: {', '.join(names)}." if names else "Leave it out.",
            )
            for name in given
            if name not in names
        )
        InvalidError.raise_if(
            FieldError(
                field=name,
                value=value,
                message="This value is too long.",
                remedy=f"Use at most {LONGEST_VALUE} characters.",
            )
            for name, values in given.lists()
            for value in values
            if len(value) > LONGEST_VALUE or "\x00" in value
        )
        self.given = given

    def text(self, name: str, default: str = "") -> str:
        """Return a text parameter; of a repeated one, the last value counts."""
        return self.given.get(name) or default

    def many(self, name: str) -> frozenset[str]:
        """Return the words of a parameter that is repeated or separated by commas."""
        words = (word.strip() for value in self.given.getlist(name) for word in value.split(","))
        return frozenset(word for word in words if word)

    def choices(self, name: str, known: Iterable[str]) -> frozenset[str]:
        """Return the words of a parameter, each of which must be in ``known``.

        Raises:
            InvalidError: at least one word is unknown.
        """
        names = list(known)
        found = self.many(name)
        InvalidError.raise_if(
            FieldError(
                field=name,
                value=word,
                message="This is not a valid choice.",
                remedy=f"Use any of: {', '.join(names)}.",
            )
            for word in sorted(found - set(names))
        )
        return found

    def flag(self, name: str) -> bool:
        """Return a boolean parameter (``1``, ``true``, ``0``, ``false``); False if it is missing.

        Raises:
            InvalidError: the value is none of these.
        """
        value = self.given.get(name)
        if value is None:
            return False
        if value.lower() not in _FLAGS:
            raise InvalidError(
                "This is not a valid boolean.", field=name, value=value, remedy="Use 1 or 0."
            )
        return _FLAGS[value.lower()]

    def number(self, name: str, *, default: int, least: int = 0, most: int = 2**53) -> int:
        """Parse an integer; return ``default`` if the parameter is missing or empty.

        Raises:
            InvalidError: the value is not an integer between ``least`` and ``most``.
        """
        value = self.given.get(name)
        if value is None or value == "":
            return default
        is_number = value.isascii() and value.removeprefix("-").isdecimal() and len(value) < 20
        if not is_number or not least <= int(value) <= most:
            raise InvalidError(
                "This is not a valid number.",
                field=name,
                value=value,
                remedy=f"Give a whole number from {least:,} to {most:,}.",
            )
        return int(value)

    def moment(self, name: str) -> datetime | None:
        """Parse a timestamp with its offset from UTC; return None if the parameter is missing.

        Raises:
            InvalidError: the value is not such a timestamp.
        """
        return instant_in_query(self.given, name)

    def cursor(self) -> str | None:
        """Return the cursor of the requested page, or None for the first page."""
        return self.given.get("cursor") or None

    def limit(self) -> int:
        return self.number("limit", default=DEFAULT_ROWS, least=1, most=MOST_ROWS)

    def picked(self, known: Iterable[str]) -> frozenset[str] | None:
        """Return the requested fields of rows, or None for all fields.

        Raises:
            InvalidError: rows do not have a requested field.
        """
        wanted = self.many("fields")
        if not wanted:
            return None
        names = list(known)
        InvalidError.raise_if(
            FieldError(
                field="fields",
                value=name,
                message="Rows do not have this field.",
                remedy=f"Use any of: {', '.join(names)}.",
            )
            for name in sorted(wanted - set(names))
        )
        return wanted


def pick(row: Mapping[str, Any], wanted: frozenset[str] | None) -> Mapping[str, Any]:
    """Return ``row`` with only the requested fields; None requests all fields."""
    return row if wanted is None else {name: row[name] for name in row if name in wanted}
