"""Queries that are asked with each request, and put together once."""

from collections.abc import Callable
from typing import Any, Final

from django.db import connection
from django.db.models import QuerySet

_MARK: Final = -(1 << 62)


class Statement:
    """A query of numbers and short texts whose SQL is kept for each kind of database.

    Django takes longer to put a small query together than the database takes to answer it. Rows
    are what the driver gives: no moments, no JSON, and truth as 0 and 1.
    """

    def __init__(self, build: Callable[[int], QuerySet[Any, Any]], *, around: str = "{}") -> None:
        """Say what is asked.

        Args:
            build: makes the query for a number, which it may compare rows with.
            around: a statement around that of the query, which stands where the braces are.
        """
        self._build = build
        self._around = around
        self._kept: dict[str, tuple[str, tuple[Any, ...]]] = {}

    def rows(self, number: int = 0) -> list[tuple[Any, ...]]:
        """The rows as they are now, for this number."""
        sql, usual = self._kept.get(connection.vendor) or self._put_together()
        with connection.cursor() as cursor:
            cursor.execute(sql, [number if value == _MARK else value for value in usual])
            return [tuple(row) for row in cursor.fetchall()]

    def _put_together(self) -> tuple[str, tuple[Any, ...]]:
        query: Any = self._build(_MARK).query
        sql, usual = query.get_compiler(connection=connection).as_sql()
        kept = self._around.format(sql), tuple(usual)
        self._kept[connection.vendor] = kept
        return kept
