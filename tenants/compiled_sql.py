"""What is asked and stored with each request, as statements that are put together once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression, Field, ForeignKey, Model, QuerySet

M = TypeVar("M", bound=Model)

_MARK: Final = -(1 << 62)
_Column = tuple[int, Expression]  # its place in rows
_Convert = Callable[[Any, Any, BaseDatabaseWrapper], Any]
_Kept = tuple[str, tuple[tuple[Any, int | None], ...], tuple[_Column, ...]]

_PLAIN: Final[Mapping[str, type]] = {
    "AutoField": int,
    "BigAutoField": int,
    "BigIntegerField": int,
    "BooleanField": bool,
    "CharField": str,
    "IntegerField": int,
    "PositiveBigIntegerField": int,
    "PositiveIntegerField": int,
    "TextField": str,
}
"""Types whose values fields of this kind store without conversion."""


class CompiledQuery:
    """A query of values whose SQL is kept for each kind of database.

    Django takes longer to put a small query together than the database takes to answer it.
    ``rows`` are what the driver gives: no moments, no JSON, and truth as 0 and 1.
    """

    def __init__(
        self, build: Callable[..., QuerySet[Any, Any]], *, around: str = "{}", keys: int = 1
    ) -> None:
        """Say what is asked.

        Args:
            build: makes the query for numbers, which it may compare rows with, texts too.
            around: a statement around that of the query, which stands where the braces are.
            keys: how many numbers ``build`` takes.
        """
        self._build = build
        self._around = around
        self._marks = [_MARK + number for number in range(keys)]
        self._kept: dict[str, _Kept] = {}

    def rows(self, *keys: int | str) -> list[tuple[Any, ...]]:
        """The rows as they are now, for these numbers, or these texts in their places."""
        database = _database()
        sql, usual, _ = self._kept_for(database)
        with database.cursor() as cursor:
            cursor.execute(
                sql, [value if place is None else keys[place] for value, place in usual]
            )
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def values(self, *keys: int | str) -> list[tuple[Any, ...]]:
        """The same, with each value as Django would give it: moments, JSON and truth, too."""
        database = _database()
        _, _, columns = self._kept_for(database)
        rows = self.rows(*keys)
        if not columns:
            return rows
        # Converters refer to the connection of their thread, so they are looked up in each call.
        found = [(place, column, _converters(column, database)) for place, column in columns]
        return [_converted(row, found, database) for row in rows]

    def _kept_for(self, database: BaseDatabaseWrapper) -> _Kept:
        kept = self._kept.get(database.vendor)
        if kept is None:
            compiler = self._build(*self._marks).query.get_compiler(connection=database)
            sql, usual = compiler.as_sql()
            columns = tuple(
                (place, column)
                for place, (column, *_) in enumerate(compiler.select)
                if _converters(column, database)
            )
            places: dict[Any, int] = {mark: place for place, mark in enumerate(self._marks)}
            places |= {str(mark): place for mark, place in places.items()}
            kept = self._kept[database.vendor] = (
                self._around.format(sql),
                tuple((value, places.get(value)) for value in usual),
                columns,
            )
        return kept


class CompiledInsert(Generic[M]):
    """How one new row of a model is stored; what ``bulk_create`` does, with SQL that is kept."""

    def __init__(self, model: type[M]) -> None:
        """Say which rows; their key is a number that the database gives."""
        self._model = model
        self._kept: dict[str, str] = {}
        self._fields: Sequence[tuple[str, type | None, Field[Any, Any]]] = ()

    def store(self, rows: Iterable[M]) -> list[M]:
        """Store new rows, which get their keys: one with the kept statement, else all at once."""
        new = list(rows)
        if len(new) != 1:
            return self._model._base_manager.bulk_create(new)
        self._store(new[0])
        return new

    def _store(self, row: M) -> None:
        database, meta = _database(), self._model._meta
        sql = self._kept_for(database)
        given = row.__dict__
        values = [
            given[name]
            if plain is not None and (given[name] is None or type(given[name]) is plain)
            else field.get_db_prep_save(field.pre_save(row, add=True), database)
            for name, plain, field in self._fields
        ]
        with database.cursor() as cursor:
            cursor.execute(sql, values)
            if database.features.can_return_columns_from_insert:
                (row.pk,) = cursor.fetchone()
            else:
                key = meta.pk.attname  # no key here has a column of another name
                row.pk = database.ops.last_insert_id(cursor, meta.db_table, key)
        row._state.adding = False
        row._state.db = database.alias

    def _kept_for(self, database: BaseDatabaseWrapper) -> str:
        kept = self._kept.get(database.vendor)
        if kept is None:
            asked: Any = database.ops  # the stubs do not know what it says of RETURNING
            quoted, meta = asked.quote_name, self._model._meta
            fields = [field for field in meta.concrete_fields if not field.primary_key]
            self._fields = [(field.attname, _plain_type(field), field) for field in fields]
            columns = ", ".join(quoted(field.column) for field in fields)
            places = ", ".join(["%s"] * len(fields))
            returned, _ = asked.return_insert_columns([meta.pk]) or ("", ())
            # Names of tables and columns alone; values have their places.
            sql = f"INSERT INTO {quoted(meta.db_table)} ({columns}) VALUES ({places})"  # noqa: S608
            kept = self._kept[database.vendor] = f"{sql} {returned}"
        return kept


def _database() -> BaseDatabaseWrapper:
    # The thread's own, once: Django's word for "the present one" is looked up at each use.
    return connections[DEFAULT_DB_ALIAS]


def _plain_type(field: "Field[Any, Any]") -> type | None:
    """The type whose values the field stores as they are; None if it converts all."""
    stored: Any = field.target_field if isinstance(field, ForeignKey) else field
    is_djangos = type(stored).__module__.startswith("django.db.models.fields")
    return _PLAIN.get(stored.get_internal_type()) if is_djangos else None


def _converters(column: Any, database: BaseDatabaseWrapper) -> Sequence[_Convert]:
    found: Sequence[_Convert] = database.ops.get_db_converters(column)
    return [*found, *column.get_db_converters(database)]


def _converted(
    row: tuple[Any, ...],
    columns: Sequence[tuple[int, Expression, Sequence[_Convert]]],
    database: BaseDatabaseWrapper,
) -> tuple[Any, ...]:
    """A row of the driver as Django gives it."""
    values = list(row)
    for place, column, converters in columns:
        for convert in converters:
            values[place] = convert(values[place], column, database)
    return tuple(values)
