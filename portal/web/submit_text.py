"""The YAML pane: reading what was typed, writing the form's changes into it, finding lines."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from portal.api.importers.context import Context
from portal.api.importers.formats import import_text, recognised
from portal.api.importers.large import LARGE_YAML_BYTES, one_large_parse
from portal.api.importers.result import Imported, ImportRefusedError
from portal.web import submit_fields
from portal.web.job_text import dump, round_trip, styled, to_yaml
from scheduling.services.drafts import from_spec_error
from tenants.errors import FieldError

MOST_EDITED_BYTES: Final = 64 << 10
_AT_LINE: Final = re.compile(r"at line (\d+)")
_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A text and what it says.

    Attributes:
        text: as it was typed, or as the form's changes made it.
        parsed: the document as it stands there, native or not.
        document: the native document; None while the text is no document.
        filled: the native document with secrets that are not in the text; None without any.
        imported: the translation, where the text is another system's document.
        faults: why it is no document.
    """

    text: str
    parsed: Mapping[str, Any] | None = None
    document: Mapping[str, Any] | None = None
    filled: Mapping[str, Any] | None = None
    imported: Imported | None = None
    faults: tuple[FieldError, ...] = ()

    @property
    def complete(self) -> Mapping[str, Any] | None:
        """The native document as it is to be checked and sent; never to be shown."""
        return self.document if self.filled is None else self.filled


def read_typed(text: str, context: Callable[[], Context] = Context) -> Typed:
    """What ``text`` says: a native document, another system's with its translation, or nothing.

    Args:
        text: as it was typed or pasted.
        context: asks what importers may know, where the document is another system's.
    """
    text = text.replace("\r\n", "\n")
    try:
        name, found = recognised(text)
        if name:
            imported = import_text(name, text, context())
            return _translated(text, found, imported)
    except ImportRefusedError as error:
        return Typed(text=text, faults=tuple(from_spec_error(fault) for fault in error.errors))
    if isinstance(found, Mapping):
        return Typed(text=text, parsed=found, document=found)
    message = "The document is empty." if found is None else "The document is no object."
    fault = FieldError(
        field="",
        message=message,
        remedy="Start with name:, virtual_cluster: and roles:, or take a template.",
        code="malformed",
    )
    return Typed(text=text, faults=(fault,))


def _translated(text: str, found: Any, imported: Imported) -> Typed:
    if not imported.nodes:
        return Typed(text=text, parsed=found, document=imported.spec, imported=imported)
    fault = FieldError(
        field="",
        message="This is a list of nodes and no job.",
        remedy="Nodes are added one by one on their own page, where each host key is confirmed.",
        code="malformed",
    )
    return Typed(text=text, faults=(fault,))


def with_changes(typed: Typed, made: Sequence[tuple[tuple[str, ...], object]]) -> Typed:
    """The text with the form's changes in it; comments and order stay."""
    if not made:
        return typed
    expected = _plain_with(typed.document or {}, made)
    text = _edited(typed, made) if typed.imported is None else None
    if text is not None:
        edited = read_typed(text)
        if edited.document == expected:
            return edited
    return read_typed(to_yaml(expected))


def with_role(typed: Typed) -> Typed:
    """One role more, to be filled in."""
    roles = submit_fields.roles_of(typed.document)
    number = len(roles) + 1
    while (name := f"worker-{number}") in roles:
        number += 1
    added: object = CommentedMap(instances=1, devices=1, command="hostname")
    return with_changes(typed, [(("roles", name), added)])


def without_role(typed: Typed, role: str) -> Typed:
    """One role fewer."""
    return with_changes(typed, [(("roles", role), None)])


def line_of(text: str, fault: FieldError) -> int | None:
    """The line (from 1) that a fault is about, or that of what should hold it."""
    if match := _AT_LINE.search(fault.message):
        return int(match[1])
    tree = _tree(text) if fault.field else None
    return _line_in(tree, fault.field) if isinstance(tree, CommentedMap) else None


def _line_in(tree: Any, path: str) -> int | None:
    line: int | None = None
    for index, key in _STEP.findall(path):
        step = int(index) if index else key
        try:
            position = tree.lc.item(step) if index else tree.lc.key(step)
            line, tree = int(position[0]) + 1, tree[step]
        except (AttributeError, IndexError, KeyError, TypeError):
            break
    return line


def _tree(text: str) -> Any:
    """The text with its comments, for editing; None for what is too long or cannot be read."""
    size = len(text.encode())
    if size > MOST_EDITED_BYTES:
        return None
    try:
        with one_large_parse(size, LARGE_YAML_BYTES):
            return round_trip().load(text)
    except (YAMLError, ValueError, RecursionError):
        return None


def _edited(typed: Typed, made: Sequence[tuple[tuple[str, ...], object]]) -> str | None:
    tree = _tree(typed.text)
    if not isinstance(tree, CommentedMap):
        return None
    for keys, value in made:
        submit_fields.apply(tree, keys, None if value is None else styled(value))
    try:
        return dump(tree)
    except (YAMLError, ValueError, RecursionError):
        return None


def _plain_with(
    document: Mapping[str, Any], made: Sequence[tuple[tuple[str, ...], object]]
) -> dict[str, Any]:
    changed: dict[str, Any] = copied(document)
    for keys, value in made:
        submit_fields.apply(changed, keys, copied(value))
    return changed


def copied(value: Any) -> Any:
    """The same mappings and lists made anew, to be changed."""
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value
