"""Instants in bodies: ISO 8601 with an offset, refused by field where they are something else."""

from datetime import datetime

from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import read_instant
from tenants.errors import InvalidError


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
