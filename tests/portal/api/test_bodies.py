"""Response models: bodies are read from values, and every model fits the values it reads."""

import dataclasses
import importlib
import pkgutil
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import pytest
from django.db.models import Model

import portal.api
from portal.api.bodies import Body, From, rounded, sources_of

# Cells are in cells; the rest is not as deep.
DEEPEST = 12


@dataclass(frozen=True)
class Part:
    index: int


@dataclass(frozen=True)
class Whole:
    id: int
    owner: str
    share: float
    names: tuple[str, ...]
    parts: tuple[Part, ...]
    by_name: Mapping[str, tuple[int, ...]]
    stored: Mapping[str, Any]
    last: Part | None = None

    @property
    def first(self) -> Part:
        return self.parts[0]


class PartOut(TypedDict):
    index: int


class StoredOut(TypedDict):
    code: str


class WholeOut(TypedDict):
    id: int
    user: Annotated[str, From("owner")]
    share: Annotated[float, From("share", rounded(2))]
    names: list[str]
    parts: list[PartOut]
    by_name: dict[str, list[int]]
    stored: StoredOut
    last: PartOut | None
    first: Annotated[int, From("first.index")]
    itself: Annotated[PartOut, From("first")]
    count: Annotated[int, From(by=lambda whole: len(whole.parts))]
    later: NotRequired[str]


def test_a_body_has_the_fields_of_its_model_in_plain_lists_and_dictionaries() -> None:
    whole = Whole(
        id=3,
        owner="alice",
        share=1 / 3,
        names=("a", "b"),
        parts=(Part(0), Part(1)),
        by_name=types.MappingProxyType({"a": (1, 2)}),
        stored={"code": "held", "secret": "x"},
    )

    assert Body(WholeOut, Whole)(whole) == {
        "id": 3,
        "user": "alice",
        "share": 0.33,
        "names": ["a", "b"],
        "parts": [{"index": 0}, {"index": 1}],
        "by_name": {"a": [1, 2]},
        "stored": {"code": "held"},
        "last": None,
        "first": 0,
        "itself": {"index": 0},
        "count": 2,
    }


def test_an_attribute_that_is_missing_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'id'"):
        Body(WholeOut, Part)(Part(1))


def bodies() -> Iterator[tuple[str, Body[Any, Any]]]:
    for module in pkgutil.walk_packages(portal.api.__path__, "portal.api."):
        for name, found in vars(importlib.import_module(module.name)).items():
            if isinstance(found, Body):
                yield f"{module.name}.{name}", found


def kind_at(value: Any, path: str) -> Any:
    """The annotated type of an attribute; None where there is none, as for columns of models."""
    for name in path.split("."):
        if isinstance(value, type) and issubclass(value, Model):
            return None
        value = kind_of_attribute(value, name)
    return value


def kind_of_attribute(owner: Any, name: str) -> Any:
    found = getattr(owner, name, None)
    if isinstance(found, property):
        return get_type_hints(found.fget)["return"]
    if isinstance(owner, type) and issubclass(owner, Enum):
        return str
    hints = get_type_hints(owner)
    assert name in hints, f"{owner} has no {name}"
    return hints[name]


def is_value(kind: Any) -> bool:
    """Whether a type has named fields: a data class or a named tuple."""
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


def faults(model: Any, value: Any, where: str) -> Iterator[str]:
    """Fields of ``model`` that have another type than what they read from ``value``."""
    if not is_value(value) or where.count(".") > DEEPEST:
        return
    for name, (source, hint) in sources_of(model).items():
        if source.by is None:
            kind = kind_at(value, source.path) if source.path else value
            if kind is not None:
                yield from misfits(hint, kind, f"{where}.{name}")


def misfits(hint: Any, kind: Any, where: str) -> Iterator[str]:
    origin = get_origin(hint)
    if hint is Any or kind is Any:
        return
    if is_typeddict(hint):
        if not is_value(kind) and get_origin(kind) not in (Mapping, dict):
            yield f"{where}: {kind} is not a value"
        yield from faults(hint, kind, where)
    elif origin in (Union, types.UnionType):
        yield from misfits_of_options(get_args(hint), kind, where)
    elif origin in (list, dict):
        wanted = (tuple, list, Sequence) if origin is list else (Mapping, dict)
        if get_origin(kind) not in wanted:
            yield f"{where}: {kind} is not a {origin.__name__}"
        else:
            inner = [one for one in get_args(kind) if one is not ...]
            yield from misfits(get_args(hint)[-1], inner[-1], where)
    elif not is_plain(str if origin is Literal else hint, kind):
        yield f"{where}: {kind} is not {hint}"


def misfits_of_options(hints: tuple[Any, ...], kind: Any, where: str) -> Iterator[str]:
    mine = [option for option in hints if option is not types.NoneType]
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for option in options:
        if option is not types.NoneType and option not in mine:
            yield from misfits(mine[0], option, where)


def is_plain(hint: Any, kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, hint) or (hint is float and issubclass(kind, int))
    )


def test_every_model_has_the_types_of_the_values_that_it_reads() -> None:
    found = [
        fault
        for name, body in bodies()
        for fault in faults(body.model, body.value, f"{name}: {body.model.__name__}")
    ]

    assert found == []


def test_a_model_that_does_not_fit_its_value_is_found() -> None:
    class WrongOut(TypedDict):
        id: str
        user: Annotated[list[str], From("owner")]
        parts: list[str]
        last: int
        names: list[str]

    assert len(list(faults(WrongOut, Whole, "Wrong"))) == 4
