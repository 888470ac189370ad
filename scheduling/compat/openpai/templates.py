"""OpenPAI's ``<% $parameters.x %>`` references in shell commands.

Commands never contain the value of a secret. Instead, they contain ``$(cat ...)``, quoted for the
surrounding shell text, so that the program gets the value as one word.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduling.compat.openpai.messages import phrase
from scheduling.compat.shared import plain_text
from scheduling.core.jobspec.errors import RefusalError

_TEMPLATE: Final = re.compile(r"<%(.*?)%>", re.DOTALL)
_REFERENCE: Final = re.compile(r"\s*\$([a-z]+)((?:\.[A-Za-z0-9_-]+|\[[0-9]{1,4}\])+)\s*")
_STEP: Final = re.compile(r"[A-Za-z0-9_-]+")
_REMEDY: Final = phrase("openpai-write-reference")
_CLOSERS: Final = {"comment": "\n", "single": "'", "ansi": "'"}
_TOGGLES: Final = {"`": "backtick", '"': "double"}


@dataclass(frozen=True, slots=True)
class _Secret:
    name: str


def render(text: str, values: Mapping[str, Any], secret_names: Mapping[str, str]) -> str:
    """Replace the references in a command.

    Args:
        text: shell text with references.
        values: values of references: parameters, script, data, output.
        secret_names: file names of the available secrets.

    Returns:
        The shell text, which reads secrets from ``$TESSERA_JOB_SECRETS_DIR``.

    Raises:
        RefusalError: a reference is malformed or undefined, or a secret is at a place where it
            cannot be read without changing the meaning of the text.
    """
    pieces: list[str | _Secret] = []
    end = 0
    for match in _TEMPLATE.finditer(text):
        pieces.append(text[end : match.start()])
        pieces.append(_resolve(match[1], values, secret_names))
        end = match.end()
    pieces.append(text[end:])
    if not any(isinstance(piece, _Secret) for piece in pieces):
        return "".join(str(piece) for piece in pieces)
    return _quote(pieces)


def referred_secrets(text: str) -> list[str]:
    """Return the names of the secrets that a command uses, in order and without duplicates."""
    names: dict[str, None] = {}
    for match in _TEMPLATE.finditer(text):
        reference = _REFERENCE.fullmatch(match[1])
        if reference and reference[1] == "secrets":
            names.setdefault(_STEP.findall(reference[2])[0])
    return list(names)


def _resolve(
    inner: str, values: Mapping[str, Any], secret_names: Mapping[str, str]
) -> str | _Secret:
    reference = _REFERENCE.fullmatch(inner)
    shown = f"<%{inner}%>"
    if reference is None:
        raise RefusalError(phrase("openpai-not-a-reference"), _REMEDY, shown=shown[:100])
    kind, steps = reference[1], _STEP.findall(reference[2])
    if kind == "secrets":
        if len(steps) != 1 or steps[0] not in secret_names:
            raise RefusalError(phrase("openpai-secret-undefined"), _REMEDY, shown=shown)
        return _Secret(secret_names[steps[0]])
    value: Any = values.get(kind)
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            value = None
    if value is None:
        raise RefusalError(phrase("openpai-undefined"), _REMEDY, shown=shown)
    return plain_text(value)


def _quote(pieces: list[str | _Secret]) -> str:
    written: list[str] = []
    shell = _Shell()
    for piece in pieces:
        if isinstance(piece, str):
            shell.feed(piece)
            written.append(piece)
        else:
            written.append(shell.reading(piece.name))
    return "".join(written)


class _Shell:
    """Tracks the quoting of shell text as far as substitutions need it."""

    def __init__(self) -> None:
        self._stack = ["plain"]
        self._before = "\n"
        self._dollar = False
        self._escaped = False
        self._heredoc = False

    def feed(self, text: str) -> None:
        """Process the next part of the text."""
        for char in text:
            self._step(char)
            self._before = char

    def reading(self, name: str) -> str:
        """Return shell text that reads the secret ``name`` at this position.

        Raises:
            RefusalError: the value cannot be read here.
        """
        state = self._stack[-1]
        read = f'$(cat "$TESSERA_JOB_SECRETS_DIR/{name}")'
        if self._heredoc or state == "backtick" or self._escaped:
            raise RefusalError(
                phrase("openpai-secret-place"), phrase("openpai-secret-in-variable"), shown=name
            )
        self._before, self._dollar = "x", False
        forms = {
            "double": read,
            "single": f"'\"{read}\"'",
            "ansi": f"'\"{read}\"$'",
            "comment": f"(secret {name})",
        }
        return forms.get(state, f'"{read}"')

    def _step(self, char: str) -> None:
        state, dollar = self._stack[-1], self._dollar
        self._dollar = False
        if self._escaped:
            self._escaped = False
        elif state in _CLOSERS:
            self._escaped = state == "ansi" and char == "\\"
            if char == _CLOSERS[state]:
                self._stack.pop()
        elif char == "\\":
            self._escaped = True
        elif char == "$":
            self._dollar = True
        elif char in _TOGGLES:
            self._toggle(_TOGGLES[char])
        elif char == "(" and dollar:
            self._stack.append("sub")
        elif state != "double":
            self._step_unquoted(char, dollar=dollar)

    def _step_unquoted(self, char: str, *, dollar: bool) -> None:
        if char == "'":
            self._stack.append("ansi" if dollar else "single")
        elif char == "#" and self._before in " \t\n;&|(":
            self._stack.append("comment")
        elif char == "<" and self._before == "<":
            self._heredoc = True
        elif char == "(" and self._stack[-1] == "sub":
            self._stack.append("sub")
        elif char == ")" and self._stack[-1] == "sub":
            self._stack.pop()

    def _toggle(self, state: str) -> None:
        if self._stack[-1] == state:
            self._stack.pop()
        else:
            self._stack.append(state)
