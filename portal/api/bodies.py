"""Parsing of request bodies by dataclasses, and building of responses by typed dictionaries."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
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

from tenants.errors import FieldError, InvalidError

T = TypeVar("T")
V = TypeVar("V")
B = TypeVar("B")
Convert = Callable[[Any], Any]
_KEYED: Final = (dict, MappingProxyType)
WORDS: Final[Mapping[type, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
_LONGEST_TEXT: Final = 100_000
_LARGEST_INTEGER: Final = 2**53
_HALF: Final = re.compile("[\ud800-\udfff]")
_HIDDEN: Final = frozenset({"password", "current_password", "key"})


def read_body(shape: type[T], body: object) -> T:
    """Parse ``body`` as the frozen dataclass ``shape``.

    Args:
        shape: defines the fields, their types and defaults.
        body: the parsed document; an empty body is an empty object.

    Raises:
        InvalidError: the body is not an object, a key is unknown or missing, or a value has the
            wrong type. The error lists all faults.
    """
    given = _checked(shape, body)
    InvalidError.raise_if(_missing(shape, given, ""))
    return shape(**given)


def is_required(known: "dataclasses.Field[Any]") -> bool:
    return known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING


def read_changes(shape: type[Any], body: object) -> dict[str, Any]:
    """Parse the fields of ``shape`` that an edit contains; other fields stay unchanged.

    Raises:
        InvalidError: as for ``read_body``, or the edit contains no field.
    """
    given = _checked(shape, body)
    if not given:
        names = ", ".join(known.name for known, _ in _fields(shape))
        raise InvalidError(
            "The edit contains no changes.", remedy=f"Specify at least one of: {names}."
        )
    return given


def _checked(shape: type[Any], body: object) -> dict[str, Any]:
    if body is None or (isinstance(body, Mapping) and not body):
        body = {}
    if not isinstance(body, Mapping):
        raise InvalidError(
            "The body is not a JSON object.", value=type(body).__name__, remedy="Send an object."
        )
    faults: list[FieldError] = []
    given = _object(shape, body, "", faults)
    InvalidError.raise_if(faults)
    return given


def _object(
    shape: type[Any], body: Mapping[str, Any], path: str, faults: list[FieldError]
) -> dict[str, Any]:
    hints = {known.name: hint for known, hint in _fields(shape)}
    for key in body:
        if key not in hints:
            remedy = f"Use any of: {', '.join(hints)}." if hints else "Send an empty object."
            faults.append(_fault(f"{path}{key}", body[key], "This is not a valid field.", remedy))
    return {
        name: _value(hint, body[name], f"{path}{name}", faults)
        for name, hint in hints.items()
        if name in body
    }


def _value(hint: Any, value: Any, path: str, faults: list[FieldError]) -> Any:
    before = len(faults)
    for option in _options(hint):
        del faults[before:]
        found = _as_option(option, value, path, faults)
        if len(faults) == before:
            return found
    if len(faults) == before + 1 and faults[-1].field == path:
        del faults[before:]
        faults.append(_fault(path, value, "This value has the wrong type.", _remedy(hint)))
    return None


def _as_option(option: Any, value: Any, path: str, faults: list[FieldError]) -> Any:
    kind = get_origin(option) or option
    if isinstance(value, Mapping) and (dataclasses.is_dataclass(option) or kind is Mapping):
        return _mapping(option, value, path, faults)
    if kind is tuple and isinstance(value, list):
        item = get_args(option)[0]
        return tuple(_value(item, v, f"{path}.{i}", faults) for i, v in enumerate(value))
    if is_typeddict(option) or kind is Any:
        # The schema describes these values, and the service validates them.
        _check_texts(value, path, faults)
    if not _fits(option, kind, value):
        faults.append(_fault(path, value, "This value has the wrong type.", _remedy(option)))
        return None
    return value


def _fits(option: Any, kind: Any, value: Any) -> bool:
    if kind is Any or (option is type(None) and value is None):
        return True
    if is_typeddict(option):
        return isinstance(value, Mapping)
    return isinstance(kind, type) and _is_plain(kind, value)


def _check_texts(value: Any, path: str, faults: list[FieldError]) -> None:
    """Reject strings that the database or JSON cannot store, at any depth of ``value``."""
    if isinstance(value, str) and not _is_text(value):
        faults.append(_fault(path, value, "This value has the wrong type.", "Use a string."))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            _check_texts(inner, f"{path}.{position}", faults)
    elif isinstance(value, Mapping):
        _check_names(value, path, faults)
        for key, inner in value.items():
            _check_texts(inner, f"{path}.{key}", faults)


def _check_names(value: Mapping[str, Any], path: str, faults: list[FieldError]) -> None:
    faults.extend(
        _fault(
            f"{path}.{key}",
            inner,
            "This name contains characters that cannot be stored.",
            "Rename it.",
        )
        for key, inner in value.items()
        if not _is_text(key)
    )


def _mapping(option: Any, value: Mapping[str, Any], path: str, faults: list[FieldError]) -> Any:
    is_model = dataclasses.is_dataclass(option)  # not in the condition: it would narrow the type
    if not is_model:
        item = get_args(option)[1]
        _check_names(value, path, faults)
        return {key: _value(item, inner, f"{path}.{key}", faults) for key, inner in value.items()}
    before = len(faults)
    given = _object(option, value, f"{path}.", faults)
    faults.extend(_missing(option, value, f"{path}."))
    return option(**given) if len(faults) == before else None


def _missing(shape: type[Any], given: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    return (
        _fault(f"{path}{known.name}", None, "This field is missing.", _remedy(hint))
        for known, hint in _fields(shape)
        if is_required(known) and known.name not in given
    )


def _is_plain(kind: type, value: Any) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is str:
        return isinstance(value, str) and _is_text(value)
    if kind is int:
        return isinstance(value, int) and abs(value) <= _LARGEST_INTEGER
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= _LARGEST_INTEGER
    return False


def _is_text(value: str) -> bool:
    """Return whether the database and JSON accept a string: bounded, no NUL, no surrogate."""
    return len(value) <= _LONGEST_TEXT and "\x00" not in value and not _HALF.search(value)


def _fields(shape: type[Any]) -> Iterator[tuple["dataclasses.Field[Any]", Any]]:
    hints = get_type_hints(shape)
    return ((known, hints[known.name]) for known in dataclasses.fields(shape))


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _remedy(hint: Any) -> str:
    return f"Give {_words(hint)}."


def _words(hint: Any) -> str:
    named = [_option_words(option) for option in _options(hint)]
    return " or ".join(dict.fromkeys(named))


def _option_words(option: Any) -> str:
    kind = get_origin(option) or option
    if option is type(None):
        return "null"
    if kind is tuple:
        return f"a list of which each entry is {_words(get_args(option)[0])}"
    if kind is Mapping or is_typeddict(option) or dataclasses.is_dataclass(kind):
        return "an object"
    return WORDS.get(kind, "a value")


def _fault(path: str, value: Any, message: str, remedy: str) -> FieldError:
    is_hidden = path.rpartition(".")[2] in _HIDDEN
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    return FieldError(
        field=path, value=None if is_hidden else value, message=message, remedy=remedy
    )


@dataclass(frozen=True, slots=True)
class From:
    """The source of a response field, given in its ``Annotated`` type.

    Without it, the field is read from the attribute with the same name.

    Attributes:
        path: dotted path of an attribute of the value; if empty, the whole value.
        by: converts the value; if None, the type of the field defines the conversion.
    """

    path: str = ""
    by: Convert | None = None


@dataclass(frozen=True)
class Body(Generic[V, B]):
    """A function that builds response bodies of one model from values of one class.

    The types of the fields define how lists, dictionaries and nested models are built. A nested
    value is read by its attributes, or by its keys if it is a dictionary.

    Attributes:
        model: the typed dictionary of the body.
        value: the class of the values; ``dict`` for stored JSON.
    """

    model: type[B]
    value: type[V]

    def __call__(self, value: V) -> B:
        return self._read(value)  # type: ignore[no-any-return] # compiled from the model

    @cached_property
    def _read(self) -> Convert:
        model: Any = self.model
        return _reader(model, issubclass(self.value, _KEYED))


def rounded(digits: int) -> Convert:
    return lambda value: None if value is None else round(value, digits)


def sources_of(model: type[Any]) -> dict[str, tuple[From, Any]]:
    """Return the source and the type of each required field of a model."""
    hints = get_type_hints(model, include_extras=True)
    required = model.__required_keys__
    return {
        name: (hint.__metadata__[0], hint.__origin__)
        if get_origin(hint) is Annotated
        else (From(name), hint)
        for name, hint in hints.items()
        if name in required
    }


@cache
def _reader(model: type[Any], has_keys: bool) -> Convert:
    """Compile one expression that converts all fields, which is as fast as handwritten code."""
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
    """Return the function that converts a value to ``hint``; None if the value fits as it is."""
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
