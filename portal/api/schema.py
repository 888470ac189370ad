"""OpenAPI document, generated from the shapes that validate requests."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NotRequired,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ComponentRegistry, ResolvedComponent
from drf_spectacular.utils import OpenApiParameter

from portal.api.bodies import is_required

LIMIT: Final = OpenApiParameter("limit", int, description="Rows per page, 1 to 200 (default 50).")
CURSOR: Final = OpenApiParameter("cursor", str, description="`next_cursor` of the previous page.")
FIELDS: Final = OpenApiParameter(
    "fields", str, description="Names of fields, separated by commas."
)
PAGE: Final = (CURSOR, LIMIT, FIELDS)
DRY_RUN: Final = OpenApiParameter(
    "dry_run", bool, description="`1`: validate only; nothing is changed."
)
IF_MATCH: Final = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The `ETag` of the last read; 412 if the resource has changed since.",
)
IDEMPOTENCY_KEY: Final = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Makes a retry safe: a second request with the same key creates nothing.",
)
PROBLEM: Final = "application/problem+json"
_PLAIN: Final[Mapping[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
    type(None): {"type": "null"},
    Any: {},
}


class FaultOut(TypedDict):
    """An error: field, value, message and remedy."""

    field: str
    value: Any
    message: str
    remedy: str
    code: NotRequired[str]


class ProblemOut(TypedDict):
    """A problem document (RFC 9457); all errors of the API have this form."""

    type: str
    title: str
    status: int
    code: str
    errors: list[FaultOut]
    request_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """The OpenAPI operation of one method of a resource.

    Attributes:
        takes: query parameters and headers; other query parameters are rejected.
        body: the dataclass or JSON schema of the request body; None if there is no body.
        answer: the type of the response, or of its rows; None if there is no content.
        status: the status code of a success.
        also: further success responses, by status or by status and media type.
        pages: whether the response is a page of ``answer``.
        holds_one_job: whether the body is one job specification, which limits the size of YAML.
    """

    takes: tuple[OpenApiParameter, ...] = ()
    body: Any = None
    answer: Any = None
    status: int = 200
    also: Mapping[int | tuple[int, str], Any] = dataclasses.field(default_factory=dict)
    pages: bool = False
    holds_one_job: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.takes if p.location == OpenApiParameter.QUERY)


class ApiSchema(AutoSchema):
    """Schema generator that reads the ``operations`` of a view."""

    view: Any
    registry: ComponentRegistry
    ops: ClassVar[Mapping[str, Op]] = {}

    @property
    def op(self) -> Op:
        found: Op = self.view.operations[self.view.action]
        return found

    def get_operation_id(self) -> str:
        return f"{self.view.collection}_{self.view.action}".replace("-", "_")

    def get_tags(self) -> list[str]:
        return [self.view.collection]

    def get_summary(self) -> str:
        """Return the first line of the method's docstring."""
        words: str = self.get_description()
        return words.partition("\n")[0].rstrip(".")

    def get_override_parameters(self) -> list[Any]:
        return list(self.op.takes)

    def get_request_serializer(self) -> Any:
        """Return the schema of the request body by media type."""
        body = self.op.body
        if body is None:
            return None
        schema = body if isinstance(body, dict) else self._ref(body)
        return {parser.media_type: schema for parser in self.view.parser_classes}

    def get_response_serializers(self) -> Any:
        """Return the schemas of the responses; the default response is a problem document."""
        answers = {self.op.status: self.op.answer, **self.op.also}
        schemas: dict[Any, Any] = {}
        for status, answer in answers.items():
            schema = None if answer is None else self._ref(answer)
            is_page = self.op.pages and schema is not None
            schemas[status] = _page_of(schema) if is_page and schema is not None else schema
        schemas["default", PROBLEM] = self._ref(ProblemOut)
        return schemas

    def _ref(self, hint: Any) -> dict[str, Any]:
        return schema_of(hint, self.registry)

    def _is_list_view(self, serializer: Any = None) -> bool:
        return False


def schema_of(hint: Any, registry: ComponentRegistry) -> dict[str, Any]:
    """Return the JSON schema of a type.

    Typed dictionaries and dataclasses become named components.
    """
    kind = get_origin(hint) or hint
    if is_typeddict(hint) or dataclasses.is_dataclass(hint):
        return _component(hint, registry)
    if kind in (Required, NotRequired, Annotated):
        return schema_of(get_args(hint)[0], registry)
    if kind in (Union, types.UnionType):
        return _union(get_args(hint), registry)
    if kind is Literal:
        return {"type": "string", "enum": list(get_args(hint))}
    if kind in (list, tuple, Sequence, dict, Mapping):
        is_list = kind in (list, tuple, Sequence)
        inner = schema_of(get_args(hint)[not is_list], registry)
        item = "items" if is_list else "additionalProperties"
        return {"type": "array" if is_list else "object", item: inner}
    return dict(_PLAIN[hint])


def _union(options: tuple[Any, ...], registry: ComponentRegistry) -> dict[str, Any]:
    schemas = [schema_of(option, registry) for option in options]
    kinds = [schema.get("type") for schema in schemas]
    if all(schema.keys() <= {"type", "format"} for schema in schemas):
        formats = {key: v for schema in schemas for key, v in schema.items() if key == "format"}
        return {"type": kinds, **formats}
    return {"anyOf": schemas}


def _component(hint: Any, registry: ComponentRegistry) -> dict[str, Any]:
    component = ResolvedComponent(  # type: ignore[no-untyped-call] # so it is published
        name=hint.__name__, type=ResolvedComponent.SCHEMA, object=hint.__name__
    )
    if component in registry:
        ref: dict[str, Any] = registry[component].ref
        return ref
    component.schema = {"type": "object"}
    registry.register(component)
    hints = get_type_hints(hint, include_extras=True)
    component.schema.update(
        description=(hint.__doc__ or "").partition("\n")[0],
        properties={name: schema_of(inner, registry) for name, inner in hints.items()},
    )
    required = _required(hint)
    if required:
        component.schema["required"] = required
    return dict(component.ref)


def _required(hint: Any) -> list[str]:
    if is_typeddict(hint):
        return sorted(hint.__required_keys__)
    return [known.name for known in dataclasses.fields(hint) if is_required(known)]


def _page_of(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "results": {"type": "array", "items": row},
            "next_cursor": {"type": ["string", "null"]},
        },
        "required": ["results", "next_cursor"],
    }
