"""Queries of each request and page whose SQL is compiled once."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression, QuerySet

_MARK: Final = -(1 << 62)
"""The parameter with which a query is compiled."""
_Column = tuple[int, Expression]  # its index in rows
_Convert = Callable[[Any, Any, BaseDatabaseWrapper], Any]
_Compiled = tuple[str, tuple[tuple[Any, bool], ...], tuple[_Column, ...]]


class CompiledQuery:
    """A query of values whose SQL is cached for each kind of database.

    Django takes longer to compile a small query than the database to execute it. ``rows`` has the
    values of the driver: no datetimes, no JSON, and booleans as 0 and 1.
    """

    def __init__(self, build: Callable[[Any], QuerySet[Any, Any]]) -> None:
        """Define the query; ``build`` builds it for one parameter, a number or a text."""
        self._build = build
        self._compiled: dict[str, _Compiled] = {}

    def rows(self, key: int | str = 0, using: str = DEFAULT_DB_ALIAS) -> list[tuple[Any, ...]]:
        """Return the current rows for this parameter; ``using`` is a database alias."""
        database = connections[using]
        sql, usual, _ = self._compiled_for(database)
        with database.cursor() as cursor:
            cursor.execute(sql, [key if is_key else value for value, is_key in usual])
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def values(self, key: int | str = 0, using: str = DEFAULT_DB_ALIAS) -> list[tuple[Any, ...]]:
        """Return the rows with Django's conversions: datetimes, JSON and booleans."""
        # Looked up once: the connection proxy of Django resolves the connection at each use.
        database = connections[using]
        _, _, columns = self._compiled_for(database)
        rows = self.rows(key, using)
        if not columns:
            return rows
        # Converters refer to the connection of their thread, so they are looked up in each call.
        found = [(place, column, _converters(column, database)) for place, column in columns]
        return [_converted(row, found, database) for row in rows]

    def _compiled_for(self, database: BaseDatabaseWrapper) -> _Compiled:
        found = self._compiled.get(database.vendor)
        if found is None:
            compiler = self._build(_MARK).query.get_compiler(connection=database)
            sql, usual = compiler.as_sql()
            columns = tuple(
                (place, column)
                for place, (column, *_) in enumerate(compiler.select)
                if _converters(column, database)
            )
            keys = (_MARK, str(_MARK))
            found = sql, tuple((value, value in keys) for value in usual), columns
            self._compiled[database.vendor] = found
        return found


def _converters(column: Any, database: BaseDatabaseWrapper) -> Sequence[_Convert]:
    found: Sequence[_Convert] = database.ops.get_db_converters(column)
    return [*found, *column.get_db_converters(database)]


def _converted(
    row: tuple[Any, ...],
    columns: Sequence[tuple[int, Expression, Sequence[_Convert]]],
    database: BaseDatabaseWrapper,
) -> tuple[Any, ...]:
    """Convert a row of the driver as Django does."""
    values = list(row)
    for place, column, converters in columns:
        for convert in converters:
            values[place] = convert(values[place], column, database)
    return tuple(values)
