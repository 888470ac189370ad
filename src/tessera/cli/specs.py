"""Conversion of the command line of ``submit`` and ``plan`` to a job specification."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tessera.cli.exits import UsageError
from tessera.client import Spec
from tessera.slurm_options import SCRIPT

FILE_ENDINGS = (".yaml", ".yml", ".json")
MAX_FILE_BYTES = 1 << 20
_BEGINNING_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineJob:
    """Values of the options; empty or ``None`` for options not given."""

    name: str = ""
    virtual_cluster: str = ""
    command: str = ""
    role: str = ""
    instances: int | None = None
    devices: int | None = None
    per_device: bool = False
    device_type: str = ""
    cpus: float | None = None
    memory: str = ""
    image: str = ""
    priority: str = ""
    opportunistic: bool = False
    env: tuple[str, ...] = ()

    def top(self) -> dict[str, Any]:
        """Return the fields of the job itself."""
        fields = {
            "name": self.name,
            "virtual_cluster": self.virtual_cluster,
            "priority": _number_or_name(self.priority),
            "class": "opportunistic" if self.opportunistic else "",
        }
        return {key: value for key, value in fields.items() if value != ""}

    def role_fields(self) -> dict[str, Any]:
        """Return the fields of its one role."""
        fields: dict[str, Any] = {
            "instances": self.instances,
            "devices": self.devices,
            "processes": "per-device" if self.per_device else None,
            "device_types": [self.device_type] if self.device_type else None,
            "cpus": self.cpus,
            "memory": self.memory or None,
            "image": self.image or None,
            "env": _environment(self.env) or None,
            "command": self.command or None,
        }
        return {key: value for key, value in fields.items() if value is not None}


def spec_of(words: Sequence[str], inline: InlineJob, *, is_command: bool = False) -> Spec:
    """Build the specification from ``[FILE | COMMAND ...]`` and the options.

    Args:
        words: the arguments as typed.
        inline: the options.
        is_command: the words followed ``--``.

    One word that ends in ``.yaml``, ``.yml`` or ``.json``, or is ``-``, is a file (``-``: standard
    input), sent as it is; name, virtual cluster and priority options replace the file's.
    Other words are the command, quoted so that each reaches the job as it was typed.

    Raises:
        UsageError: the words contain no job, or a script of another system.
    """
    if len(words) == 1 and (words[0] == "-" or words[0].lower().endswith(FILE_ENDINGS)):
        return _from_file(words[0], inline)
    if words and inline.command:
        raise UsageError("two commands: use either --command or arguments after --")
    if len(words) == 1 and not is_command:
        _refuse_script(words[0])
    command = inline.command or shlex.join(words)
    if not command:
        raise UsageError(
            "nothing to submit: use a file (job.yaml, or - for standard input), or "
            "--vc NAME and a command after --"
        )
    return _from_options(command, inline)


def _from_options(command: str, inline: InlineJob) -> dict[str, Any]:
    role = {"instances": 1, "devices": 1} | inline.role_fields() | {"command": command}
    top = {"name": _name_from(command)} | inline.top()
    return top | {"roles": {inline.role or "worker": role}}


def _from_file(name: str, inline: InlineJob) -> Spec:
    text = read_text(name)
    if SCRIPT.search(text):
        raise _script_error(name)
    if inline.role_fields() or inline.role:
        given = ", ".join(f"--{key}" for key in inline.role_fields()) or "--role"
        raise UsageError(f"{given} cannot be combined with the file {name}: edit the file instead")
    if not inline.top():
        return text
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not valid YAML: {error}") from error
    if not isinstance(document, dict) or "protocolVersion" in document:
        raise UsageError(
            f"{name} is not a native job specification: --name, --vc, --priority do not apply"
        )
    return document | inline.top()


def _refuse_script(word: str) -> None:
    """Reject the name of a batch script, which is imported and not run as a command."""
    try:
        with Path(word).open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return
    if SCRIPT.search(beginning):
        raise _script_error(word)


def _script_error(name: str) -> UsageError:
    quoted = shlex.quote(name)
    return UsageError(
        f"{name} is a batch script: submit it with `tessera import {quoted}`. "
        f"To run a file of that name on the node, use `-- {quoted}`."
    )


def read_text(name: str) -> str:
    """Read a text file; ``-`` is standard input.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or is too large.
    """
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = raw.decode()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not valid UTF-8 ({error.reason} at byte {error.start})"
        ) from error
    if len(raw) > MAX_FILE_BYTES:
        raise UsageError(f"{name} has {len(raw)} bytes: a specification has at most 1 MiB")
    return text


def _name_from(command: str) -> str:
    """Return the default name of a job: the name of its program."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    programs = [word for word in words if not word.startswith("-") and "=" not in word]
    chosen = programs[:2] if programs and "python" in programs[0] else programs[:1]
    stem = Path(chosen[-1]).stem if chosen else ""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40] or "job"


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    environment = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"--env {pair!r} is not of the form NAME=VALUE")
        environment[name] = value
    return environment


def _number_or_name(priority: str) -> str | int:
    return int(priority) if re.fullmatch(r"-?\d{1,4}", priority) else priority
