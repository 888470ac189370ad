"""Instants that come with a request: ISO 8601 with an offset, else refused by their field."""

from datetime import datetime

from django.http import QueryDict

from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import read_instant
from tenants.errors import InvalidError


def instant_from(field: str, given: str, *, meant: str = "") -> datetime:
    """The instant that was given; ``meant``: what is read, where that is another text.

    Raises:
        InvalidError: it is no instant with an offset.
    """
    try:
        return read_instant(meant or given)
    except RefusalError as refusal:
        raise InvalidError(
            f"This {refusal.message}", field=field, value=given, remedy=refusal.remedy
        ) from None


def instant_in_query(query: QueryDict, name: str) -> datetime | None:
    """The instant that a parameter of an address names; None without it.

    Raises:
        InvalidError: it is no instant with an offset.
    """
    given = query.get(name)
    # A plus sign in an address is a space.
    return instant_from(name, given, meant=given.replace(" ", "+")) if given else None


def instant(field: str, value: str | None) -> datetime | None:
    """The instant that a field of a body names; None for none.

    Raises:
        InvalidError: it is no instant with an offset.
    """
    if value is None:
        return None
    try:
        return read_instant(value)
    except RefusalError as refusal:
        raise InvalidError(
            "This is not an instant.", field=field, value=value, remedy=refusal.remedy
        ) from None
