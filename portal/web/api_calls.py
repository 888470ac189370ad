"""The API on pages: its schema as a plain page, and the calls that correspond to a page."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from drf_spectacular.generators import SchemaGenerator

from portal.web.viewing import PageRequest, page
from scheduling.jobs.queries.job_detail import JobDetail

_METHODS: Final = ("get", "post", "put", "patch", "delete")
_DEEPEST: Final = 4
TOKEN: Final = "Authorization: Token $TESSERA_TOKEN"  # noqa: S105 the name of a variable


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
    """Show the reference of the API."""
    calls = first_calls(asked.portal_url, asked.viewer.username)
    return asked.render("api/docs.html", {"resources": resources(), "calls": calls})


@cache
def resources() -> tuple[ResourceDoc, ...]:
    """Return every resource with its operations, as the schema describes them."""
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
    """Resolve a reference to an object; of several alternatives, return the first object."""
    choice = described.get("anyOf", ())
    objects = [option for option in choice if "$ref" in option]
    if objects:
        described = objects[0]
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        found: Mapping[str, Any] = schema["components"]["schemas"][name]
        return found
    return described


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One action; ``cli`` or ``rest`` is empty if only the other exists."""

    summary: str
    rest: str = ""
    cli: str = ""


def calls_for(detail: JobDetail, base_url: str) -> tuple[Call, ...]:
    """Return the calls that read or change the job.

    Args:
        detail: the job.
        base_url: ``https://host`` of this portal.
    """
    number = detail.row.id
    job = f"{base_url}/api/v1/jobs/{number}/"
    role, rank = first_rank(detail)
    calls = [
        Call(summary=_("Waiting reason"), cli=f"tessera why {number}", rest=_get(f"{job}why/")),
        Call(
            summary=_("Follow the log"),
            cli=f"tessera logs -f {number}",
            rest=_get(f"{job}logs/?role={role}&rank={rank}&offset=0"),
        ),
        Call(summary=_("Job details"), rest=_get(job)),
        Call(summary=_("Events"), rest=_get(f"{job}events/")),
        Call(summary=_("Attempts"), rest=_get(f"{job}attempts/")),
        Call(summary=_("Goodput"), rest=_get(f"{job}goodput/")),
    ]
    if detail.can_submit:
        calls.append(
            Call(
                summary=_("Clone the job"),
                cli=f"tessera clone {number}",
                rest=_post(f"{job}clone/"),
            )
        )
    if detail.can_stop and not detail.row.is_over:
        calls.append(
            Call(
                summary=_("Stop the job"), cli=f"tessera stop {number}", rest=_post(f"{job}stop/")
            )
        )
    return tuple(calls)


def submit_calls(base_url: str, file: str = "job.yaml") -> Call:
    """Return the shell calls that submit a document."""
    return Call(
        summary=_("Submit a job document"),
        cli=f"tessera submit {file}",
        rest=f'curl -H "{TOKEN}" -H "Content-Type: application/yaml" '
        f"--data-binary @{file} {shlex.quote(f'{base_url}/api/v1/jobs/')}",
    )


def first_calls(base_url: str, username: str) -> tuple[Call, ...]:
    """Return the first shell commands for a user of the pages."""
    login = f"tessera --url {shlex.quote(base_url)} login --user {shlex.quote(username)}"
    return (
        Call(summary=_("Sign in (once)"), cli=login),
        submit_calls(base_url),
        Call(
            summary=_("Running and queued jobs"),
            cli="tessera ps",
            rest=_get(f"{base_url}/api/v1/jobs/"),
        ),
    )


def first_rank(detail: JobDetail) -> tuple[str, int]:
    """Return the rank whose log is shown first."""
    members = detail.attempts[-1].members if detail.attempts else ()
    first = next(iter(members), None)
    return (first.role, first.rank) if first else (next(iter(detail.spec["roles"]), "worker"), 0)


def _get(url: str) -> str:
    return f'curl -H "{TOKEN}" {shlex.quote(url)}'


def _post(url: str, body: object = None) -> str:
    sent = f" -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body or {}))}"
    return f'curl -X POST -H "{TOKEN}"{sent} {shlex.quote(url)}'
