"""Response bodies read from values, as declared by typed dictionaries."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

V = TypeVar("V")
B = TypeVar("B")
Convert = Callable[[Any], Any]
_KEYED: Final = (dict, MappingProxyType)


@dataclass(frozen=True, slots=True)
class From:
    """The source of a field, in its ``Annotated``; without it the attribute of the same name.

    Attributes:
        path: an attribute of the value, dotted for one of a nested value; empty: the whole value.
        by: converts the value; None: by the type of the field.
    """

    path: str = ""
    by: Convert | None = None


@dataclass(frozen=True)
class Body(Generic[V, B]):
    """A function that reads bodies of one model from values of one class.

    Lists, dictionaries and nested models are built from the types of the fields. A nested value
    is read by its attributes, or by its keys if it is a dictionary.

    Attributes:
        model: a typed dictionary.
        value: the class of the values; ``dict`` for stored JSON.
    """

    model: type[B]
    value: type[V]

    def __call__(self, value: V) -> B:
        """The body of one value."""
        return self._read(value)  # type: ignore[no-any-return] # compiled from the model

    @cached_property
    def _read(self) -> Convert:
        model: Any = self.model
        return _reader(model, issubclass(self.value, _KEYED))


def rounded(digits: int) -> Convert:
    """A conversion of a number."""
    return partial(_round, digits)


def sources_of(model: type[Any]) -> dict[str, tuple[From, Any]]:
    """The required fields of a model, each with its source and its type."""
    hints = get_type_hints(model, include_extras=True)
    required = model.__required_keys__
    return {name: _source(name, hint) for name, hint in hints.items() if name in required}


def _source(name: str, hint: Any) -> tuple[From, Any]:
    if get_origin(hint) is not Annotated:
        return From(name), hint
    inner, source = get_args(hint)
    return source, inner


@cache
def _reader(model: type[Any], has_keys: bool) -> Convert:
    """Build one expression for all fields, as fast as a handwritten one, as dataclasses do."""
    names: dict[str, Convert] = {}
    fields = []
    for name, (source, hint) in sources_of(model).items():
        found = "value"
        if source.path:
            found += f"[{source.path!r}]" if has_keys else f".{source.path}"
        convert = source.by or _conversion(hint)
        if convert is not None:
            names[f"convert_{name}"] = convert
            found = f"convert_{name}({found})"
        fields.append(f"{name!r}: {found}")
    text = f"lambda value: {{{', '.join(fields)}}}"
    read: Convert = eval(text, names)  # noqa: S307 # made of names in our own models only
    return read


def _conversion(hint: Any) -> Convert | None:
    """Return the conversion to this type; None: not needed."""
    kind = get_origin(hint) or hint
    if is_typeddict(kind):
        return partial(_nested, kind)
    if kind in (Union, UnionType):
        inner = [_conversion(option) for option in get_args(hint) if option is not NoneType]
        return partial(_unless_none, inner[0]) if inner[0] is not None else None
    if kind in (list, dict):
        inner_conversion = _conversion(get_args(hint)[-1])
        if inner_conversion is None:
            return kind  # type: ignore[no-any-return] # list or dict
        return partial(_list if kind is list else _dict, inner_conversion)
    return None


def _nested(model: Any, value: Any) -> Any:
    return _reader(model, isinstance(value, _KEYED))(value)


def _unless_none(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _list(convert: Convert, values: Any) -> list[Any]:
    return [convert(value) for value in values]


def _dict(convert: Convert, values: Any) -> dict[str, Any]:
    return {key: convert(value) for key, value in values.items()}


def _round(digits: int, value: Any) -> Any:
    return None if value is None else round(value, digits)
