"""Differences between the specifications of jobs, field by field."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MOST_ROWS: Final = 500
LONGEST_VALUE: Final = 300
LONGEST_COMMAND: Final = 20_000
"""Characters of a command that are searched for options."""
NOT_COMPARED: Final = frozenset(("name", "note", "labels"))
"""Fields that identify a job and do not change what it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecRow:
    """A field of several specifications.

    Attributes:
        path: names joined by points; an option of a command has its name, such as ``--lr``.
        values: a text for each specification; None where it lacks the field.
        is_option: whether it is an option of a command.
    """

    path: str
    values: tuple[str | None, ...]
    is_option: bool = False

    @property
    def differs(self) -> bool:
        """Whether not all values are equal."""
        return len(set(self.values)) > 1


def spec_rows(specs: Sequence[Mapping[str, Any]]) -> tuple[SpecRow, ...]:
    """Compare specifications field by field; options of commands are fields of their own.

    Args:
        specs: canonical specifications.

    Returns:
        At most ``MOST_ROWS`` rows: first those that differ, and options before other fields, each
        in the order of the first specification that has the field.
    """
    found = [dict(_fields(spec)) for spec in specs]
    paths = dict.fromkeys(path for fields in found for path in fields)
    rows = [
        SpecRow(
            path=name,
            values=tuple(fields.get((name, is_option)) for fields in found),
            is_option=is_option,
        )
        for name, is_option in paths
    ]
    return tuple(sorted(rows, key=_order)[:MOST_ROWS])


def _order(row: SpecRow) -> tuple[bool, bool]:
    return not row.differs, not row.is_option


def _fields(spec: Mapping[str, Any]) -> Iterator[tuple[tuple[str, bool], str]]:
    roles = spec.get("roles") or {}
    for name, role in roles.items():
        prefix = f"{name} " if len(roles) > 1 else ""
        for option, value in options_of(role.get("command")).items():
            yield (f"{prefix}{option}", True), _short(value)
    for path, value in _leaves(spec, ""):
        yield (path, False), value


def _leaves(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        if not prefix and name in NOT_COMPARED:
            continue
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        elif name == "command":
            yield path, _short(_without_options(value))
        elif value not in (None, [], ""):
            yield path, _short(_text(value))


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(each)}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def options_of(command: object) -> dict[str, str]:
    """Return the options of a command, such as ``{"--lr": "3e-4"}``; ``"on"`` without a value."""
    words = _words(command)
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if not _is_option(word):
            continue
        name, equals, value = word.partition("=")
        following = words[place + 1] if place + 1 < len(words) else "-"
        if not equals:
            value = "on" if _is_option(following) or following == "-" else following
        found.setdefault(name, value)
    return found


def _without_options(command: object) -> str:
    """Return a command without its options and their values."""
    words = _words(command)
    if not any(map(_is_option, words)):
        return command if isinstance(command, str) else " ".join(words)
    kept = [
        word
        for place, word in enumerate(words)
        if not _is_option(word)
        and not (place and _is_option(words[place - 1]) and "=" not in words[place - 1])
    ]
    return " ".join(kept)


def _is_option(word: str) -> bool:
    return len(word) > 2 and word.startswith("--") and word[2].isalpha()


def _words(command: object) -> list[str]:
    """Return the words of a command; those between blanks if its quotes are not closed."""
    if isinstance(command, list):
        return [str(word) for word in command]
    text = str(command or "")[:LONGEST_COMMAND]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
