"""What is asked and stored with each request, as statements that are put together once."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression, Field, Model, QuerySet

M = TypeVar("M", bound=Model)

_MARK: Final = -(1 << 62)
_MARKS: Final = (_MARK, str(_MARK))
_Kept = tuple[str, tuple[Any, ...], tuple[Expression, ...]]


class Statement:
    """A query of values whose SQL is kept for each kind of database.

    Django takes longer to put a small query together than the database takes to answer it.
    ``rows`` are what the driver gives: no moments, no JSON, and truth as 0 and 1.
    """

    def __init__(self, build: Callable[[int], QuerySet[Any, Any]], *, around: str = "{}") -> None:
        """Say what is asked.

        Args:
            build: makes the query for a number, which it may compare rows with, texts too.
            around: a statement around that of the query, which stands where the braces are.
        """
        self._build = build
        self._around = around
        self._kept: dict[str, _Kept] = {}

    def rows(self, key: int | str = 0) -> list[tuple[Any, ...]]:
        """The rows as they are now, for this number, or this text in its place."""
        database = _database()
        sql, usual, _ = self._kept_for(database)
        with database.cursor() as cursor:
            cursor.execute(sql, [key if value in _MARKS else value for value in usual])
            return [tuple(row) for row in cursor.fetchall()]

    def values(self, key: int | str = 0) -> list[tuple[Any, ...]]:
        """The same, with each value as Django would give it: moments, JSON and truth, too."""
        database = _database()
        _, _, columns = self._kept_for(database)
        return [
            tuple(
                _converted(value, column, database)
                for value, column in zip(row, columns, strict=True)
            )
            for row in self.rows(key)
        ]

    def _kept_for(self, database: BaseDatabaseWrapper) -> _Kept:
        kept = self._kept.get(database.vendor)
        if kept is None:
            compiler = self._build(_MARK).query.get_compiler(connection=database)
            sql, usual = compiler.as_sql()
            columns = tuple(column for column, *_ in compiler.select)
            kept = self._kept[database.vendor] = self._around.format(sql), tuple(usual), columns
        return kept


class Insertion(Generic[M]):
    """How one new row of a model is stored; what ``bulk_create`` does, with SQL that is kept."""

    def __init__(self, model: type[M]) -> None:
        """Say which rows; their key is a number that the database gives."""
        self._model = model
        self._kept: dict[str, str] = {}

    def store(self, rows: Iterable[M]) -> list[M]:
        """Store new rows, which get their keys: one with the kept statement, else all at once."""
        new = list(rows)
        if len(new) != 1:
            return self._model._base_manager.bulk_create(new)
        self._store(new[0])
        return new

    def _store(self, row: M) -> None:
        database, meta = _database(), self._model._meta
        values = [
            field.get_db_prep_save(field.pre_save(row, add=True), database)
            for field in self._fields()
        ]
        with database.cursor() as cursor:
            cursor.execute(self._kept_for(database), values)
            if database.features.can_return_columns_from_insert:
                (row.pk,) = cursor.fetchone()
            else:
                key = meta.pk.attname  # no key here has a column of another name
                row.pk = database.ops.last_insert_id(cursor, meta.db_table, key)
        row._state.adding = False
        row._state.db = database.alias

    def _fields(self) -> Sequence["Field[Any, Any]"]:
        return [field for field in self._model._meta.concrete_fields if not field.primary_key]

    def _kept_for(self, database: BaseDatabaseWrapper) -> str:
        kept = self._kept.get(database.vendor)
        if kept is None:
            asked: Any = database.ops  # the stubs do not know what it says of RETURNING
            quoted, meta = asked.quote_name, self._model._meta
            columns = ", ".join(quoted(field.column) for field in self._fields())
            places = ", ".join(["%s"] * len(self._fields()))
            returned, _ = asked.return_insert_columns([meta.pk]) or ("", ())
            # Names of tables and columns alone; values have their places.
            sql = f"INSERT INTO {quoted(meta.db_table)} ({columns}) VALUES ({places})"  # noqa: S608
            kept = self._kept[database.vendor] = f"{sql} {returned}"
        return kept


def _database() -> BaseDatabaseWrapper:
    # The thread's own, once: Django's word for "the present one" is looked up at each use.
    return connections[DEFAULT_DB_ALIAS]


def _converted(value: Any, column: Any, database: BaseDatabaseWrapper) -> Any:
    """A value of the driver as Django gives it for a column of a query."""
    found = database.ops.get_db_converters(column) + column.get_db_converters(database)
    for convert in found:
        value = convert(value, column, database)
    return value
