"""The schema of the API as a plain page: Swagger's content without scripts and inline styles."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from django.http.response import HttpResponseBase
from drf_spectacular.generators import SchemaGenerator

from portal.web.job_calls import first_calls
from portal.web.viewing import PageRequest, page

_METHODS: Final = ("get", "post", "put", "patch", "delete")
_DEEPEST: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDoc:
    """One field of a body or a response; ``depth`` counts the enclosing objects."""

    name: str
    kind: str
    depth: int
    required: bool
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDoc:
    """One method at one address."""

    method: str
    path: str
    anchor: str
    summary: str
    words: str
    parameters: tuple[FieldDoc, ...]
    body: tuple[FieldDoc, ...]
    answers: tuple[tuple[str, tuple[FieldDoc, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDoc:
    """All operations of a resource."""

    name: str
    operations: tuple[OperationDoc, ...]


@page
def docs(asked: PageRequest) -> HttpResponseBase:
    """The reference of the API."""
    calls = first_calls(asked.portal_url, asked.viewer.username)
    return asked.render("api/docs.html", {"resources": resources(), "calls": calls})


@cache
def resources() -> tuple[ResourceDoc, ...]:
    """Every resource with its operations, as the schema describes them."""
    generator: Any = SchemaGenerator  # the package is untyped
    schema: Mapping[str, Any] = generator().get_schema(request=None, public=True)
    by_tag: dict[str, list[OperationDoc]] = {}
    for path, methods in schema["paths"].items():
        for method in _METHODS:
            if method in methods:
                operation = methods[method]
                found = _operation(method, path, operation, schema)
                by_tag.setdefault(operation["tags"][0], []).append(found)
    return tuple(ResourceDoc(name=n, operations=tuple(ops)) for n, ops in by_tag.items())


def _operation(
    method: str, path: str, operation: Mapping[str, Any], schema: Mapping[str, Any]
) -> OperationDoc:
    summary, _, words = operation.get("description", "").partition("\n")
    answers = operation["responses"].items()
    return OperationDoc(
        method=method.upper(),
        path=path,
        anchor=operation["operationId"],
        summary=summary,
        words=words.strip(),
        parameters=tuple(
            FieldDoc(
                name=parameter["name"],
                kind=_kind(parameter.get("schema", {}), schema),
                depth=0,
                required=parameter.get("required", False),
                words=parameter.get("description", ""),
            )
            for parameter in operation.get("parameters", ())
        ),
        body=_content_fields(operation.get("requestBody", {}), schema),
        answers=tuple(
            (status, _content_fields(answer, schema))
            for status, answer in answers
            if status != "default"
        ),
    )


def _content_fields(
    described: Mapping[str, Any], schema: Mapping[str, Any]
) -> tuple[FieldDoc, ...]:
    for content in described.get("content", {}).values():
        return tuple(_fields(content.get("schema", {}), schema, 0))
    return ()


def _fields(
    described: Mapping[str, Any], schema: Mapping[str, Any], depth: int
) -> Iterator[FieldDoc]:
    described = _resolved(described, schema)
    if described.get("type") == "array":
        yield from _fields(described.get("items", {}), schema, depth)
        return
    required = described.get("required", ())
    for name, inner in described.get("properties", {}).items():
        yield FieldDoc(
            name=name,
            kind=_kind(inner, schema),
            depth=depth,
            required=name in required,
            words=_resolved(inner, schema).get("description", ""),
        )
        if depth < _DEEPEST - 1:
            yield from _fields(inner, schema, depth + 1)


def _kind(described: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    described = _resolved(described, schema)
    if "anyOf" in described:
        return " or ".join(_kind(option, schema) for option in described["anyOf"])
    if "enum" in described:
        return ", ".join(str(value) for value in described["enum"])
    kinds = described.get("type", "any")
    named = [kinds] if isinstance(kinds, str) else list(kinds)
    words = {}
    if "array" in named:
        words["array"] = f"list of {_kind(described.get('items', {}), schema)}"
    if "format" in described:
        words["string"] = described["format"]
    return " or ".join(words.get(kind, kind) for kind in named)


def _resolved(described: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object behind a reference; of alternatives the first object."""
    choice = described.get("anyOf", ())
    objects = [option for option in choice if "$ref" in option]
    if objects:
        described = objects[0]
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        found: Mapping[str, Any] = schema["components"]["schemas"][name]
        return found
    return described
