"""Fast parsing of timestamps as databases return them, for thousands of rows.

SQLite stores UTC without an offset; PostgreSQL returns ISO with the offset, as
``portal.settings.backends`` configures.
"""

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=16384)
def moment_of(stored: str) -> datetime:
    """Parse a stored timestamp; results are cached, since most values repeat."""
    moment = datetime.fromisoformat(stored)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def seconds_of(stored: str) -> float:
    """Parse a stored timestamp into seconds since 1970; results are cached."""
    return moment_of(stored).timestamp()
