"""Parsing of ISO 8601 timestamps with an offset in requests; others are refused by field."""

from datetime import datetime

from django.http import QueryDict

from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import read_instant
from tenants.errors import InvalidError


def instant_from(field: str, given: str, *, meant: str = "") -> datetime:
    """Parse a timestamp; ``meant``: the text to parse, if it differs.

    Raises:
        InvalidError: not a timestamp with an offset.
    """
    try:
        return read_instant(meant or given)
    except RefusalError as refusal:
        raise InvalidError(
            f"This {refusal.message}", field=field, value=given, remedy=refusal.remedy
        ) from None


def instant_in_query(query: QueryDict, name: str) -> datetime | None:
    """Parse the timestamp in a query parameter; None without it.

    Raises:
        InvalidError: not a timestamp with an offset.
    """
    given = query.get(name)
    # A plus sign in an address is a space.
    return instant_from(name, given, meant=given.replace(" ", "+")) if given else None


def instant(field: str, value: str | None) -> datetime | None:
    """Parse the timestamp in a field of a body; None for none.

    Raises:
        InvalidError: not a timestamp with an offset.
    """
    if value is None:
        return None
    try:
        return read_instant(value)
    except RefusalError as refusal:
        raise InvalidError(
            "This is not an instant.", field=field, value=value, remedy=refusal.remedy
        ) from None
