"""Parsing stored rounds: frozen values from their canonical JSON.

The writer names the fields of values; here the types of the fields control the parsing. Missing
fields have their defaults, so that later versions can read old rounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from scheduling.core.reasons import Reason
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot
from tessera.messages import Message, message_from

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_PLAIN: Final = (str, bool, object)


class UnreadableRoundError(ValueError):
    """A stored round does not have the format of any version."""


def read_stored(document: Mapping[str, Any]) -> tuple[ClusterSnapshot, RoundResult]:
    """Parse the snapshot and the result of a stored round.

    Raises:
        UnreadableRoundError: the document is not a stored round.
    """
    try:
        return (
            _reader(ClusterSnapshot)(document["snapshot"]),
            _reader(RoundResult)(document["result"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRoundError(f"not a stored round: {error!r}") from error


def read_value(kind: Callable[..., T], document: Any) -> T:
    """Parse a part of a stored round, such as one job.

    Raises:
        UnreadableRoundError: the document is not such a value.
    """
    try:
        value: T = _reader(kind)(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRoundError(f"not a stored value: {error!r}") from error
    return value


@lru_cache(maxsize=256)
def _reader(kind: Any) -> _Reader:
    """Build the parser of a type's values."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or kind in _PLAIN:
        return _as_it_is
    if origin in (Union, UnionType):
        (inner,) = (_reader(arg) for arg in args if arg is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is not None:
        return _many_reader(origin, args)
    if kind is Message:
        return message_from
    if isinstance(kind, type):
        if is_dataclass(kind):
            return _value_reader(kind)
        if issubclass(kind, Enum) or kind in (int, float):
            return kind
    raise TypeError(f"cannot read a {kind}")


def _many_reader(origin: type, args: tuple[Any, ...]) -> _Reader:
    if origin is tuple:
        return _tuple_reader(args)
    if origin is frozenset:
        item = _reader(args[0])
        return lambda values: frozenset(item(value) for value in values)
    if issubclass(origin, Mapping):
        key, value_of = _reader(args[0]), _reader(args[1])
        return lambda values: {key(name): value_of(value) for name, value in values.items()}
    raise TypeError(f"cannot read a {origin}")


def _as_it_is(value: Any) -> Any:
    return value


def _tuple_reader(args: tuple[Any, ...]) -> _Reader:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _reader(args[0])
        return lambda values: tuple(map(item, values))
    items = tuple(map(_reader, args))
    return lambda values: tuple(item(value) for item, value in zip(items, values, strict=True))


def _value_reader(kind: type[T]) -> Callable[[Mapping[str, Any]], T]:
    hints = get_type_hints(kind)
    # A type may hold others of its own kind, so that readers of fields are looked up when needed.
    known = {field.name: hints[field.name] for field in fields(kind)}  # type: ignore[arg-type]
    needed = {
        field.name
        for field in fields(kind)  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING
    }

    def read(document: Mapping[str, Any]) -> T:
        if kind is Reason and "text" in document:
            # Rounds from before messages have the English text only.
            document = {**document, "message": document["text"]}
        missing = needed - document.keys()
        if missing:
            raise UnreadableRoundError(f"{kind.__name__} without {', '.join(sorted(missing))}")
        return kind(
            **{name: _reader(known[name])(document[name]) for name in known if name in document}
        )

    return read
