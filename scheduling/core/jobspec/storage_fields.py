"""The field ``storage``: the storages that a job mounts, by name."""

from typing import Any, Final

from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import read_bool, read_matching, read_string
from scheduling.core.jobspec.table import Field, read_object, text_schema
from scheduling.core.jobspec.values import StorageRequest
from scheduling.core.messages import sentence
from tessera.isolation import MAX_PATH_BYTES
from tessera.messages import english_of
from tessera.storage import MAX_STORAGES, STORAGE_NAME, mount_problem, nested_pairs


def read_storage(value: object, place: DocumentPlace) -> tuple[StorageRequest, ...]:
    """Read ``storage``: a list of names, or of objects with name, mount and read_only."""
    if not isinstance(value, list | tuple) or len(value) > MAX_STORAGES:
        raise RefusalError(
            sentence("not-storages"), sentence("write-storages", most=MAX_STORAGES), "wrong-type"
        )
    found: list[StorageRequest] = []
    for index, item in enumerate(value):
        there = place.item(index)
        faults = len(there.errors)
        given = read_object({"name": item} if isinstance(item, str) else item, _FIELDS, there)
        if len(there.errors) > faults:
            continue
        if given["name"] in [one.name for one in found]:
            there.child("name").refuse(
                given["name"], sentence("named-twice"), sentence("give-once"), "duplicate"
            )
        found.append(StorageRequest(**given))
    mounts = [one.mount for one in found]
    for outer, inner in nested_pairs(filter(None, mounts)):
        last = len(mounts) - 1 - mounts[::-1].index(inner)
        place.item(last).child("mount").refuse(
            inner,
            sentence("mounts-conflict", other=outer),
            sentence("use-another-mount"),
            "conflict",
        )
    return tuple(found)


def read_storage_name(value: object) -> str:
    return read_matching(value, STORAGE_NAME, sentence("write-storage-name"))


def _mount(value: object, _place: DocumentPlace) -> str:
    remedy = sentence("write-mount")
    text = read_string(value, remedy).rstrip("/")
    if mount_problem(text) is not None:
        raise RefusalError(sentence("not-mount"), remedy)
    return text


_FIELDS: Final = (
    Field(
        name="name",
        type="name",
        required=True,
        help=sentence("help-storage-name"),
        read=lambda value, _place: read_storage_name(value),
        schema=text_schema(40, pattern=f"^{STORAGE_NAME.pattern}$"),
    ),
    Field(
        name="mount",
        type="path",
        default="that of the storage",
        help="Directory in the job at which the storage appears.",
        read=_mount,
        schema=text_schema(MAX_PATH_BYTES),
    ),
    Field(
        name="read_only",
        type="true or false",
        default="that of the storage",
        help="Whether the job only reads it.",
        read=lambda value, _place: read_bool(value),
        schema={"type": "boolean"},
    ),
)


def _item_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            known.name: {"description": english_of(known.help), **known.schema}
            for known in _FIELDS
        },
        "required": ["name"],
        "additionalProperties": False,
    }


STORAGE_FIELD: Final = Field(
    name="storage",
    type="list of storages",
    default="as in the virtual cluster",
    help="Storages that the job mounts. Each has a name, and optionally mount (a directory in the "
    "job) and read_only. An empty list means none.",
    read=read_storage,
    schema={"type": "array", "maxItems": MAX_STORAGES, "items": _item_schema()},
)
