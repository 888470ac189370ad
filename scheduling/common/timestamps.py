"""Moments as databases spell them, for answers of thousands of rows that Django would convert.

SQLite stores UTC without saying so; PostgreSQL writes ISO with the offset, as its connections are
told to (``portal.settings.databases``).
"""

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=16384)
def moment_of(stored: str) -> datetime:
    """The moment; most of what is read was read before."""
    moment = datetime.fromisoformat(stored)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def seconds_of(stored: str) -> float:
    """The same in seconds since 1970."""
    return moment_of(stored).timestamp()
