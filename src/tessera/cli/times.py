"""Times of the API as people read them: in the time zone of this machine, or in UTC."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

Utc = Annotated[bool, typer.Option("--utc", help="Show times in UTC, not in the local time zone.")]


def moment(value: Any) -> datetime | None:
    """A time of the API; None where there is none."""
    return datetime.fromisoformat(value) if isinstance(value, str) and value else None


def shown(at: datetime, *, utc: bool) -> datetime:
    """The same moment in UTC or in the local time zone (variable ``TZ``, else the machine's)."""
    return at.astimezone(UTC) if utc else at.astimezone()


def clock(value: Any, *, utc: bool = False) -> str:
    """``2026-03-01 11:00:00 CET``; empty where there is no time."""
    found = moment(value)
    return f"{shown(found, utc=utc):%Y-%m-%d %H:%M:%S %Z}" if found else ""
