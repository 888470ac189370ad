"""Objects described by tables of fields, and the one loop that reads them."""

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

# What the same thing is called elsewhere.
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
    "container": "image",
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
    """One key of an object.

    Attributes:
        name: the key.
        type: what its value is, in words.
        help: what it is for, a sentence.
        read: checks one value; raises ``RefusalError`` or notes errors below its place.
        schema: the JSON schema of the value.
        default: what holds without it, in words; empty for a required field.
        required: the document is refused without it.
        unsupported: it is known, but does not work yet.
        hidden: values are secrets.
        fields: the table of the values' own keys.
        keyed_by: the values' placeholder if the object's keys are the user's, such as ``<name>``.
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
    """Read an object key by key, noting everything that is wrong.

    Args:
        value: what stands in the document.
        fields: the keys that may stand there.
        place: where it stands.

    Returns:
        The values that were given and are right; null counts as not given.
    """
    working = [known.name for known in fields if not known.unsupported]
    if not isinstance(value, Mapping):
        remedy = sentence("write-object", names=", ".join(working))
        place.note(value, wrong_type(value, sentence("kind-object"), remedy))
        return {}
    refuse_unknown(value, [known.name for known in fields], place, working)
    found: dict[str, Any] = {}
    for known in fields:
        there = place.child(known.name, hidden=known.hidden)
        result = _read_field(value.get(known.name), known, there)
        if result is not _ABSENT:
            found[known.name] = result
    return found


def refuse_unknown(
    value: Mapping[Any, Any],
    names: Sequence[str],
    place: DocumentPlace,
    working: Sequence[str] = (),
) -> None:
    """Note every key of ``value`` that is not in ``names``, with the name that was meant.

    Args:
        value: the object.
        names: the keys that may stand there.
        place: where it stands.
        working: the keys to propose, if not all of them.
    """
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
    """Read an object whose keys are the user's own.

    Args:
        value: what stands in the document.
        place: where it stands.
        most: how many keys there may be.
        words: what belongs there, such as "a map of role names to roles".
        key: checks one key; raises ``RefusalError``.
        read: checks one value; raises ``RefusalError`` or notes errors itself.

    Returns:
        The entries that are right.
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
    """Read a list of values that differ.

    Args:
        value: what stands in the document.
        place: where it stands.
        most: how many values there may be.
        words: what belongs there, such as "device types".
        read: checks one value; raises ``RefusalError``.

    Returns:
        The values that are right.
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
    """One of a few words."""
    remedy = sentence("write-one-of", names=", ".join(words))
    text = read_string(value, remedy)
    if text not in words:
        raise RefusalError(sentence("not-choice"), remedy)
    return text


def text_schema(most: int, **more: Any) -> dict[str, Any]:
    """The JSON schema of a text."""
    return {"type": "string", "maxLength": most, **more}


def number_schema(lowest: int, highest: int) -> dict[str, Any]:
    """The JSON schema of a whole number."""
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def _check_key(name: object, check: Callable[[str], object], place: DocumentPlace) -> None:
    """Note a key that may not stand here; the key is shown even where values are secrets."""
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
