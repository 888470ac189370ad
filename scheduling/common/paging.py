"""Keyset pagination: an opaque cursor is the start of the next page; rows are not counted."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from scheduling.core.messages import sentence
from tenants.errors import InvalidError

MOST_ROWS: Final = 200
DEFAULT_ROWS: Final = 50
_LARGEST_ID: Final = 2**63 - 1

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[R_co]):
    """Some rows, and the cursor of the next page (None at the end)."""

    results: tuple[R_co, ...]
    next_cursor: str | None


def page_limit(limit: int) -> int:
    """Return ``limit`` if it is a valid page size.

    Raises:
        InvalidError: ``limit`` is not between 1 and ``MOST_ROWS``.
    """
    if isinstance(limit, bool) or not 1 <= limit <= MOST_ROWS:
        raise InvalidError(
            sentence("page-size", most=MOST_ROWS),
            field="limit",
            value=limit,
            remedy=sentence("give-number", most=MOST_ROWS),
        )
    return limit


def make_cursor(*key: int) -> str:
    raw = json.dumps(key, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def read_cursor(cursor: str | None, parts: int = 1) -> tuple[int, ...] | None:
    """Parse the key in a cursor; return None for the first page.

    Args:
        cursor: ``next_cursor`` of an earlier page.
        parts: number of numbers in the key.

    Raises:
        InvalidError: the cursor is not valid.
    """
    if not cursor:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        key = None
    if not _is_key(key, parts):
        raise InvalidError(
            sentence("not-page-cursor"),
            field="cursor",
            value=cursor,
            remedy=sentence("start-again-without-cursor"),
        )
    return tuple(key)


def cut(rows: Sequence[R], limit: int, key: Callable[[R], int | tuple[int, ...]]) -> Page[R]:
    """Build a page from the first ``limit`` of ``rows``; a further row means another page.

    Args:
        rows: at most ``limit + 1`` rows in the order of the page.
        limit: maximum number of rows on a page.
        key: returns the key of a row, for the cursor of the next page.
    """
    if len(rows) <= limit:
        return Page(tuple(rows), None)
    last = key(rows[limit - 1])
    return Page(tuple(rows[:limit]), make_cursor(*(last if isinstance(last, tuple) else (last,))))


def _is_key(key: object, parts: int) -> bool:
    return (
        isinstance(key, list)
        and len(key) == parts
        and all(
            isinstance(part, int) and not isinstance(part, bool) and abs(part) <= _LARGEST_ID
            for part in key
        )
    )
