"""The fields of a job as data, for the reference in docs, the form and OpenAPI."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduling.core.jobspec.job_fields import JOB_FIELDS
from scheduling.core.jobspec.table import Field
from tessera.messages import english_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInfo:
    """One row of the field reference.

    Attributes:
        path: path of the field, such as ``roles.<name>.devices``.
        type: description of the type of the value.
        default: description of the default value; empty for a required field.
        help: purpose of the field, as a sentence.
        required: whether the document is refused without it.
        unsupported: whether the field is defined but still refused.
    """

    path: str
    type: str
    default: str
    help: str
    required: bool
    unsupported: bool


def json_schema() -> dict[str, Any]:
    """Build the JSON schema (2020-12, as in OpenAPI 3.1) of a submitted document.

    The schema accepts slightly more than ``parse``, which decides.
    """
    return {"title": "JobSpec", "description": "A job.", **_object_schema(JOB_FIELDS)}


def fields_table() -> str:
    """Build the reference of all fields as a Markdown table, for ``docs/job-spec.md``."""
    lines = ["| field | value | default | meaning |", "|---|---|---|---|"]
    for info in SPEC_FIELDS:
        default = "**required**" if info.required else info.default
        words = f"*Not supported yet.* {info.help}" if info.unsupported else info.help
        lines.append(f"| `{info.path}` | {info.type} | {default} | {words} |")
    return "\n".join(lines)


def _flatten(fields: Sequence[Field], prefix: str = "") -> Iterator[FieldInfo]:
    for known in fields:
        path = f"{prefix}{known.name}"
        yield FieldInfo(
            path=path,
            type=known.type,
            default=known.default,
            help=known.help,
            required=known.required,
            unsupported=known.unsupported,
        )
        below = f"{path}.{known.keyed_by}." if known.keyed_by else f"{path}."
        yield from _flatten(known.fields, below)


def _object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            known.name: _field_schema(known) for known in fields if not known.unsupported
        },
        "required": [known.name for known in fields if known.required],
        "additionalProperties": False,
    }


def _field_schema(known: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": english_of(known.help), **known.schema}
    if known.keyed_by:
        schema["additionalProperties"] = _object_schema(known.fields)
        schema["minProperties"] = 1
    elif known.fields:
        schema |= {**_object_schema(known.fields), **known.schema}
    return schema


SPEC_FIELDS: Final = tuple(_flatten(JOB_FIELDS))
