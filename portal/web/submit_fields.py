"""Conversion between a job document and the fields of the form.

Only changed fields of the form are written, so that everything else in the YAML (comments, order,
quotes, fields that the form does not have) is preserved.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from portal.i18n import gettext_lazy
from scheduling.core.lifecycle import FailureClass
from scheduling.core.watching.log_rules import LONGEST_NAME

Kind = Literal[
    "text",
    "block",
    "integer",
    "number",
    "names",
    "numbers",
    "lines",
    "counts",
    "rules",
    "storages",
    "stages",
    "flag",
    "gang",
]

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?")
# ``exclude-node: a pattern``, or ``exclude-node (its name): a pattern``.
_RULE: Final = re.compile(r"\s*([a-z-]+)\s*(?:\(([^()]*)\))?\s*:\s*(.*)")
_ROLE_FIELD: Final = re.compile(r"roles\.([a-z][a-z0-9-]{0,31})\.")
FIRST_ROLE: Final = "worker"
NO_STORAGES: Final = "none"
"""The text of an empty list of storages; an empty text means the defaults."""
# Default of a choice without an empty value while the document does not have it.
_CHOSEN: Final = {"class": "guaranteed", "within": "node"}
LABELS: Final = {
    "name": gettext_lazy("Name"),
    "virtual_cluster": gettext_lazy("Virtual cluster"),
    "priority": gettext_lazy("Priority"),
    "class": gettext_lazy("Class"),
    "note": gettext_lazy("Note"),
    "labels": gettext_lazy("Labels"),
    "max_duration": gettext_lazy("Time limit"),
    "deadline": gettext_lazy("Deadline"),
    "not_before": gettext_lazy("Not before"),
    "after": gettext_lazy("Depends on jobs"),
    "held": gettext_lazy("On hold until released"),
    "gang": gettext_lazy("Instance scheduling"),
    "retries.user": gettext_lazy("Command failed"),
    "retries.resource-limit": gettext_lazy("Memory or disk limit exceeded"),
    "retries.node": gettext_lazy("Node failure"),
    "retries.image": gettext_lazy("Image failure"),
    "retries.preempted": gettext_lazy("Preemption"),
    "retries.timeout": gettext_lazy("Time limit exceeded"),
    "retries.platform": gettext_lazy("Platform failure"),
    "grace_seconds": gettext_lazy("Grace period"),
    "elastic.mode": gettext_lazy("Elastic mode"),
    "elastic.min": gettext_lazy("Minimum devices"),
    "elastic.max": gettext_lazy("Maximum devices"),
    "elastic.logical_workers": gettext_lazy("Logical workers"),
    "elastic.determinism": gettext_lazy("Determinism"),
    "elastic.executors": gettext_lazy("Processes per device"),
    "elastic.initial_batch": gettext_lazy("Initial batch"),
    "elastic.max_batch": gettext_lazy("Maximum batch"),
    "elastic.max_local_batch": gettext_lazy("Maximum batch per device"),
    "elastic.profile": gettext_lazy("Batch profile"),
    "elastic.total_steps": gettext_lazy("Total steps"),
    "elastic.epochs": gettext_lazy("Epochs"),
    "parallel.batch": gettext_lazy("Batch"),
    "parallel.micro_batches": gettext_lazy("Micro-batches"),
    "parallel.schedule": gettext_lazy("Pipeline schedule"),
    "parallel.plan": gettext_lazy("Parallel plan"),
    "parallel.stages": gettext_lazy("Pipeline stages"),
    "parallel.max_tensor": gettext_lazy("Maximum tensor width"),
    "parallel.profile": gettext_lazy("Model profile"),
    "checkpoint_dir": gettext_lazy("Checkpoint directory"),
    "storage": gettext_lazy("Storages"),
    "notify.on": gettext_lazy("E-mail on events"),
    "notify.to": gettext_lazy("Additional recipients"),
    "idle_policy": gettext_lazy("Idle policy"),
    "idle_policy.below": gettext_lazy("Idle threshold"),
    "idle_policy.warn_after": gettext_lazy("Warn after"),
    "idle_policy.stop_after": gettext_lazy("Stop after"),
    "idle_policy.devices": gettext_lazy("Idle devices"),
    "log_rules": gettext_lazy("Log rules"),
    "source.git.url": gettext_lazy("Git repository"),
    "source.git.ref": gettext_lazy("Branch, tag or commit"),
    "source.archive": gettext_lazy("Uploaded archive"),
    "instances": gettext_lazy("Instances"),
    "devices": gettext_lazy("Devices per instance"),
    "processes": gettext_lazy("Processes"),
    "device_types": gettext_lazy("Device type"),
    "within": gettext_lazy("Placement level"),
    "pinned_cell": gettext_lazy("Pinned cell"),
    "cpus": gettext_lazy("CPUs"),
    "memory": gettext_lazy("Memory"),
    "image": gettext_lazy("Image"),
    "command": gettext_lazy("Command"),
    "env": gettext_lazy("Environment variables"),
    "ports": gettext_lazy("Ports"),
    "image_secret": gettext_lazy("Registry secret"),
    "container.user": gettext_lazy("Container user"),
    "container.ipc": gettext_lazy("IPC namespace"),
    "container.shm": gettext_lazy("Size of /dev/shm"),
    "container.workdir": gettext_lazy("Start directory"),
    "container.entrypoint": gettext_lazy("Run the command through the entrypoint of the image"),
    "container.rdma": gettext_lazy("InfiniBand (RDMA) in the container"),
    "completion.min_failed": gettext_lazy("Fails after"),
    "completion.min_succeeded": gettext_lazy("Succeeds after"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPath:
    """One field of the form: the keys that lead to its value, and the type of its value."""

    keys: tuple[str, ...]
    kind: Kind = "text"

    @property
    def name(self) -> str:
        """The path in errors and the name of the form's field."""
        return ".".join(self.keys)


JOB_FIELDS: Final = (
    FieldPath(keys=("name",)),
    FieldPath(keys=("virtual_cluster",)),
    FieldPath(keys=("priority",), kind="integer"),
    FieldPath(keys=("class",)),
    FieldPath(keys=("note",), kind="block"),
    FieldPath(keys=("labels",), kind="lines"),
    FieldPath(keys=("max_duration",), kind="integer"),
    FieldPath(keys=("deadline",)),
    FieldPath(keys=("not_before",)),
    FieldPath(keys=("after",), kind="numbers"),
    FieldPath(keys=("held",), kind="flag"),
    FieldPath(keys=("gang",), kind="gang"),
    *(FieldPath(keys=("retries", each.value), kind="integer") for each in FailureClass),
    FieldPath(keys=("grace_seconds",), kind="integer"),
    FieldPath(keys=("elastic", "mode")),
    FieldPath(keys=("elastic", "min"), kind="integer"),
    FieldPath(keys=("elastic", "max"), kind="integer"),
    FieldPath(keys=("elastic", "logical_workers"), kind="integer"),
    FieldPath(keys=("elastic", "determinism")),
    FieldPath(keys=("elastic", "executors"), kind="integer"),
    FieldPath(keys=("elastic", "initial_batch"), kind="integer"),
    FieldPath(keys=("elastic", "max_batch"), kind="integer"),
    FieldPath(keys=("elastic", "max_local_batch"), kind="integer"),
    FieldPath(keys=("elastic", "profile")),
    FieldPath(keys=("elastic", "total_steps"), kind="integer"),
    FieldPath(keys=("elastic", "epochs"), kind="integer"),
    FieldPath(keys=("parallel", "batch"), kind="integer"),
    FieldPath(keys=("parallel", "micro_batches"), kind="integer"),
    FieldPath(keys=("parallel", "schedule")),
    FieldPath(keys=("parallel", "plan")),
    FieldPath(keys=("parallel", "stages"), kind="stages"),
    FieldPath(keys=("parallel", "max_tensor"), kind="integer"),
    FieldPath(keys=("parallel", "profile")),
    FieldPath(keys=("storage",), kind="storages"),
    FieldPath(keys=("checkpoint_dir",)),
    FieldPath(keys=("notify", "on"), kind="names"),
    FieldPath(keys=("notify", "to"), kind="names"),
    FieldPath(keys=("idle_policy",)),
    FieldPath(keys=("idle_policy", "below"), kind="integer"),
    FieldPath(keys=("idle_policy", "warn_after"), kind="integer"),
    FieldPath(keys=("idle_policy", "stop_after"), kind="integer"),
    FieldPath(keys=("idle_policy", "devices")),
    FieldPath(keys=("log_rules",), kind="rules"),
    FieldPath(keys=("source", "git", "url")),
    FieldPath(keys=("source", "git", "ref")),
    FieldPath(keys=("source", "archive")),
)
ROLE_FIELDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("instances", "integer"),
    ("devices", "integer"),
    ("processes", "text"),
    ("device_types", "names"),
    ("within", "text"),
    ("pinned_cell", "text"),
    ("cpus", "number"),
    ("memory", "integer"),
    ("image", "text"),
    ("command", "block"),
    ("env", "lines"),
    ("ports", "counts"),
    ("image_secret", "text"),
    ("container.user", "text"),
    ("container.ipc", "text"),
    ("container.shm", "integer"),
    ("container.workdir", "text"),
    ("container.entrypoint", "flag"),
    ("container.rdma", "flag"),
    ("completion.min_failed", "integer"),
    ("completion.min_succeeded", "integer"),
)


def fields_for(roles: Sequence[str]) -> tuple[FieldPath, ...]:
    """Build all fields of a form with these roles."""
    return JOB_FIELDS + tuple(
        FieldPath(keys=("roles", role, *key.split(".")), kind=kind)
        for role in roles
        for key, kind in ROLE_FIELDS
    )


def roles_of(document: object) -> tuple[str, ...]:
    """Return the roles that the form shows, in the document's order; at least one."""
    roles = document.get("roles") if isinstance(document, Mapping) else None
    named = tuple(str(role) for role in roles) if isinstance(roles, Mapping) else ()
    shown = tuple(role for role in named if _ROLE_FIELD.fullmatch(f"roles.{role}."))
    return shown[:32] or (FIRST_ROLE,)


def roles_in(posted: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the roles whose fields were posted, in the order of the form."""
    found = (_ROLE_FIELD.match(name) for name in posted)
    return tuple(dict.fromkeys(match[1] for match in found if match))


def values_of(document: object, roles: Sequence[str]) -> dict[str, str | bool]:
    """Return the texts of the form for ``document``, by field name."""
    shown = {path: _shown(value_at(document, path.keys), path.kind) for path in fields_for(roles)}
    return {path.name: text or _CHOSEN.get(path.keys[-1], text) for path, text in shown.items()}


def posted_values(posted: Mapping[str, str], roles: Sequence[str]) -> dict[str, str | bool]:
    """Return the posted texts of the form, by field name."""
    return {
        path.name: path.name in posted if path.kind == "flag" else posted.get(path.name, "")
        for path in fields_for(roles)
    }


def value_at(document: object, keys: Sequence[str]) -> object:
    """Return the value below ``keys``; None if missing."""
    found = document
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def changes(
    posted: Mapping[str, str], document: object, roles: Sequence[str]
) -> list[tuple[tuple[str, ...], object]]:
    """Return changes in the form: keys and new values, None for a cleared field.

    Args:
        posted: the form's texts by field name.
        document: the document that the form was filled from.
        roles: the roles of the form.
    """
    before = values_of(document, roles)
    made: list[tuple[tuple[str, ...], object]] = []
    for path in fields_for(roles):
        if path.kind == "flag":
            if f"{path.name}.shown" not in posted:
                continue
            after: str | bool = path.name in posted
        elif path.name in posted:
            after = posted[path.name].replace("\r\n", "\n")
        else:
            continue
        if after != before[path.name]:
            made.append((path.keys, _read(after, path.kind)))
    return made


def apply(target: Any, keys: Sequence[str], value: object) -> None:
    """Write one value below ``keys`` of a mapping; None deletes it, and empty parents."""
    *above, last = keys
    trail = [target]
    for key in above:
        inner = trail[-1].get(key)
        if not isinstance(inner, Mapping):
            if value is None:
                return
            inner = type(target)()
            trail[-1][key] = inner
        trail.append(inner)
    if value is not None:
        trail[-1][last] = value
        return
    trail[-1].pop(last, None)
    for place in range(len(above) - 1, -1, -1):
        if (above[0] != "roles" or place > 1) and not trail[place + 1]:
            del trail[place][above[place]]


def lines_of(mapping: Mapping[Any, Any]) -> str:
    """Format texts by name as ``NAME=text`` lines; quote a text that one line cannot hold."""
    return "\n".join(f"{key}={_quoted(str(value))}" for key, value in mapping.items())


def _quoted(text: str) -> str:
    plain = text.isprintable() and not text.startswith('"') and text == text.strip()
    return text if plain else json.dumps(text, ensure_ascii=False)


def _shown(value: object, kind: Kind) -> str | bool:
    if kind == "flag":
        return value is True
    if value is None or (kind == "gang" and value is True):
        return ""
    if kind in ("lines", "counts"):
        return lines_of(value) if isinstance(value, Mapping) else ""
    if kind in ("rules", "stages"):
        line = _rule_line if kind == "rules" else _stage_line
        return "\n".join(map(line, value)) if isinstance(value, list) else str(value)
    if isinstance(value, list):
        words = ", ".join(map(_storage_word if kind == "storages" else str, value))
        return words or (NO_STORAGES if kind == "storages" else "")
    return "" if isinstance(value, Mapping) else "false" if value is False else str(value)


def _read(text: str | bool, kind: Kind) -> object:
    if isinstance(text, bool):
        return text or None
    if kind == "block":
        return text if text.strip() else None
    text = text.strip()
    if not text:
        return None
    if kind in ("integer", "number"):
        return _as_number(text)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    readers: Mapping[str, Callable[[], object]] = {
        "rules": lambda: [_as_rule(line) for line in text.split("\n") if line.strip()],
        "stages": lambda: [_as_stage(line) for line in text.split("\n") if line.strip()],
        "storages": lambda: [] if text == NO_STORAGES else [_as_storage(part) for part in parts],
        "numbers": lambda: [_as_number(part) for part in parts],
        "names": lambda: parts,
        "lines": lambda: _as_mapping(text),
        "counts": lambda: {key: _as_number(value) for key, value in _as_mapping(text).items()},
        "gang": lambda: False if text == "false" else text,
    }
    return readers[kind]() if kind in readers else text


def _storage_word(storage: object) -> str:
    """Format a storage as ``name``, or with ``:/mount`` and ``:ro`` or ``:rw`` where given."""
    if not isinstance(storage, Mapping):
        return str(storage)
    words = [storage.get("name", ""), storage.get("mount") or ""]
    words.append({True: "ro", False: "rw"}.get(storage.get("read_only"), ""))  # type: ignore[arg-type]
    return ":".join(str(word) for word in words if word)


def _as_storage(text: str) -> object:
    name, *words = text.split(":")
    found: dict[str, object] = {"name": name}
    for word in words:
        if word in ("ro", "rw"):
            found["read_only"] = word == "ro"
        else:
            found["mount"] = word
    return found if words else name


def _rule_line(rule: object) -> str:
    """Format a log rule as a line; with its name only if set."""
    if not isinstance(rule, Mapping):
        return str(rule)
    pattern, name = str(rule.get("pattern", "")), str(rule.get("name", ""))
    own = f" ({name})" if name and name != pattern[:LONGEST_NAME] else ""
    return f"{rule.get('action', '')}{own}: {pattern}"


def _as_rule(line: str) -> dict[str, str]:
    """Parse a line; a line without an action is a pattern only, which is a fault."""
    found = _RULE.fullmatch(line)
    if found is None:
        return {"pattern": line.strip()}
    named = {"name": found[2].strip()} if found[2] else {}
    return {**named, "pattern": found[3].strip(), "action": found[1]}


def _stage_line(stage: object) -> str:
    """Format a stage as ``first=0 last=3 data=2``."""
    if not isinstance(stage, Mapping):
        return str(stage)
    return " ".join(f"{key}={value}" for key, value in stage.items())


def _as_stage(line: str) -> dict[str, object]:
    """Parse a line; a word without ``=`` is a field without a value, which is a fault."""
    words = (word.partition("=") for word in line.replace(",", " ").split())
    return {key: _as_number(value) if value else None for key, _, value in words}


def _as_number(text: str) -> object:
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _as_mapping(text: str) -> dict[str, str]:
    found = {}
    for line in text.split("\n"):
        key, _, value = line.partition("=")
        if line.strip():
            found[key.strip()] = _unquoted(value.strip())
    return found


def _unquoted(text: str) -> str:
    if not (len(text) > 1 and text.startswith('"') and text.endswith('"')):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text
