"""Objects described by tables of fields, and the loop that parses them."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from scheduling.core.jobspec.errors import DocumentPlace, RefusalError, may_be_secret, show_key
from scheduling.core.jobspec.scalars import read_string, wrong_type
from scheduling.core.messages import sentence

AMOUNT: Final = {"type": ["integer", "string"]}
OBJECT: Final = {"type": "object"}
TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}

_ABSENT: Final = object()
T = TypeVar("T")

# Names of the same field in other systems.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "gpu": "devices",
    "gpus": "devices",
    "num_gpus": "devices",
    "gpu_type": "device_types",
    "gpu_types": "device_types",
    "nodes": "instances",
    "replicas": "instances",
    "count": "instances",
    "cpu": "cpus",
    "mem": "memory",
    "ram": "memory",
    "cmd": "command",
    "run": "command",
    "script": "command",
    "entrypoint": "command",
    "environment": "env",
    "envs": "env",
    "docker_image": "image",
    "vc": "virtual_cluster",
    "queue": "virtual_cluster",
    "partition": "virtual_cluster",
    "description": "note",
    "tags": "labels",
    "timeout": "max_duration",
    "time_limit": "max_duration",
    "begin": "not_before",
    "depends_on": "after",
    "dependencies": "after",
    "hold": "held",
    "taskRoles": "roles",
    "tasks": "roles",
    "retry": "retries",
    "grace": "grace_seconds",
    "grace_period": "grace_seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One key of an object, with its type and reader.

    Attributes:
        name: the key.
        type: description of the type of its value.
        help: purpose of the key, as a sentence.
        read: checks one value; raises ``RefusalError`` or notes errors below its place.
        schema: the JSON schema of the value.
        default: description of the default value; empty for a required field.
        required: whether the document is refused without it.
        unsupported: whether the key is defined but still refused.
        hidden: whether values are secrets.
        fields: keys of the values, if these are objects.
        keyed_by: placeholder such as ``<name>`` if users choose the keys of the object.
    """

    name: str
    type: str
    help: str
    read: Callable[[object, DocumentPlace], Any]
    schema: Mapping[str, Any]
    default: str = ""
    required: bool = False
    unsupported: bool = False
    hidden: bool = False
    fields: Sequence["Field"] = field(default=())
    keyed_by: str = ""


def read_object(value: object, fields: Sequence[Field], place: DocumentPlace) -> dict[str, Any]:
    """Read an object key by key, and collect all errors.

    Args:
        value: value in the document.
        fields: the allowed keys.
        place: place of the value in the document.

    Returns:
        The given, valid values; null counts as not given.
    """
    working = [known.name for known in fields if not known.unsupported]
    if not isinstance(value, Mapping):
        remedy = sentence("write-object", names=", ".join(working))
        place.note(value, wrong_type(value, sentence("kind-object"), remedy))
        return {}
    refuse_unknown(value, [known.name for known in fields], place, working)
    found: dict[str, Any] = {}
    for known in fields:
        raw = value.get(known.name)
        if raw is None and not known.required:
            continue
        there = place.child(known.name, hidden=known.hidden)
        result = _read_field(raw, known, there)
        if result is not _ABSENT:
            found[known.name] = result
    return found


def refuse_unknown(
    value: Mapping[Any, Any],
    names: Sequence[str],
    place: DocumentPlace,
    working: Sequence[str] = (),
) -> None:
    """Add an error for every key of ``value`` that is not in ``names``, with the closest name.

    Args:
        value: the object.
        names: the allowed keys.
        place: place of the value in the document.
        working: the keys to suggest, if not all.
    """
    if place.ignores_unknown:
        return
    for key in value:
        if place.is_full:
            return
        if key not in names:
            there = place.child(key, hidden=may_be_secret(key))
            there.refuse(
                value[key],
                sentence("unknown-field", field=show_key(key)),
                _suggestion(key, working or names),
                "unknown-field",
            )


def read_map(
    value: object,
    place: DocumentPlace,
    *,
    most: int,
    words: str,
    key: Callable[[str], object],
    read: Callable[[object, DocumentPlace], Any],
) -> dict[str, Any]:
    """Read an object whose keys users choose.

    Args:
        value: value in the document.
        place: place of the value in the document.
        most: maximum number of keys.
        words: expected content, such as "a map of role names to roles".
        key: checks one key; raises ``RefusalError``.
        read: checks one value; raises ``RefusalError`` or notes errors itself.

    Returns:
        The valid entries.
    """
    remedy = sentence("write-map", words=words, most=most)
    if not isinstance(value, Mapping):
        raise wrong_type(value, sentence("kind-object"), remedy)
    if len(value) > most:
        raise RefusalError(
            sentence("too-many-entries", count=len(value), most=most), remedy, "too-long"
        )
    found: dict[str, Any] = {}
    for name, item in value.items():
        there = place.child(name)
        try:
            _check_key(name, key, there)
            result = read(item, there)
        except RefusalError as refusal:
            there.note(item, refusal)
        else:
            found[str(name)] = result
    return found


def read_list(
    value: object, place: DocumentPlace, *, most: int, words: str, read: Callable[[object], T]
) -> tuple[T, ...]:
    """Read a list of distinct values.

    Args:
        value: value in the document.
        place: place of the value in the document.
        most: maximum number of values.
        words: expected content, such as "device types".
        read: checks one value; raises ``RefusalError``.

    Returns:
        The valid values.
    """
    remedy = sentence("write-list", words=words, most=most)
    if not isinstance(value, list | tuple):
        raise wrong_type(value, sentence("kind-list"), remedy)
    if len(value) > most:
        raise RefusalError(
            sentence("too-many-entries", count=len(value), most=most), remedy, "too-long"
        )
    found: list[T] = []
    for index, item in enumerate(value):
        there = place.item(index)
        try:
            result = read(item)
        except RefusalError as refusal:
            there.note(item, refusal)
            continue
        if result in found:
            there.refuse(item, sentence("named-twice"), sentence("give-once"), "duplicate")
        found.append(result)
    return tuple(found)


def choice(value: object, words: Sequence[str]) -> str:
    """Read one of the allowed words."""
    remedy = sentence("write-one-of", names=", ".join(words))
    text = read_string(value, remedy)
    if text not in words:
        raise RefusalError(sentence("not-choice"), remedy)
    return text


def text_schema(most: int, **more: Any) -> dict[str, Any]:
    """Build the JSON schema of a string."""
    return {"type": "string", "maxLength": most, **more}


def number_schema(lowest: int, highest: int) -> dict[str, Any]:
    """Build the JSON schema of an integer."""
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def _check_key(name: object, check: Callable[[str], object], place: DocumentPlace) -> None:
    """Add an error about a key that is not valid; it shows the key even if values are secrets."""
    shown = replace(place, hidden=False)
    if not isinstance(name, str):
        shown.note(name, wrong_type(name, sentence("kind-text"), sentence("quote-key")))
        return
    try:
        check(name)
    except RefusalError as refusal:
        shown.note(name, refusal)


def _read_field(raw: object, known: Field, place: DocumentPlace) -> Any:
    if raw is None:
        if known.required:
            place.refuse(
                raw,
                sentence("missing"),
                sentence("give-field", name=known.name, help=known.help),
                "missing-field",
            )
        return _ABSENT
    if known.unsupported:
        place.refuse(
            raw, sentence("unsupported"), sentence("omit", name=known.name), "unsupported-field"
        )
        return _ABSENT
    try:
        return known.read(raw, place)
    except RefusalError as refusal:
        place.note(raw, refusal)
        return _ABSENT


def _suggestion(key: object, names: Sequence[str]) -> str:
    meant = _ELSEWHERE.get(str(key), "")
    if meant not in names:
        near = difflib.get_close_matches(str(key)[:64].lower(), names, n=1)
        meant = near[0] if near else ""
    if meant:
        return sentence("did-you-mean", meant=meant)
    return sentence("remove-unknown", names=", ".join(names)) if names else sentence("remove-it")
