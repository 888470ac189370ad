"""The YAML pane: parse the typed text; write changes and uploads into it, comments preserved."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml
from django.utils.translation import gettext

from portal.api.documents import read_document, recognise, translate
from portal.web import submit_fields
from portal.web.job_documents import plain, to_yaml
from portal.web.viewing import PageRequest
from scheduling.compat.context import Context
from scheduling.compat.result import Imported, ImportRefusedError
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.archives import store_archive
from scheduling.jobs.validation import from_spec_error
from tenants.errors import DomainError, FieldError
from tessera.messages import message_of
from workers.conf import worker_settings

Entry = tuple[yaml.Node, yaml.Node]
MOST_EDITED_BYTES: Final = 64 << 10
MOST_EDITS: Final = 20
_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
PIECE_BYTES = 1 << 20
FIELD = "source.archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A text and its parsed content.

    Attributes:
        text: the text as typed, or with the form's changes.
        parsed: the document as written, native or not.
        document: the native document; None if the text is not a document.
        filled: the native document with secrets that are not in the text; None without any.
        imported: the translation, if it is another system's document.
        faults: why the text is not a document.
    """

    text: str
    parsed: Mapping[str, Any] | None = None
    document: Mapping[str, Any] | None = None
    filled: Mapping[str, Any] | None = None
    imported: Imported | None = None
    faults: tuple[FieldError, ...] = ()

    @property
    def complete(self) -> Mapping[str, Any] | None:
        """Return the native document with secrets, for check and submit; never to be shown."""
        return self.document if self.filled is None else self.filled


def read_typed(text: str, context: Callable[[], Context] = Context) -> Typed:
    """Parse ``text``: a native document, one of another system with its translation, or neither.

    Args:
        text: the typed or pasted text.
        context: returns the import context, for another system's document.
    """
    text = text.replace("\r\n", "\n")
    try:
        name, found = recognise(text)
        if name:
            imported = translate(name, text, context())
            return _translated(text, found, imported)
    except ImportRefusedError as error:
        return Typed(text=text, faults=tuple(from_spec_error(fault) for fault in error.errors))
    if isinstance(found, Mapping):
        return Typed(text=text, parsed=found, document=found)
    message = (
        gettext("The document is empty.")
        if found is None
        else gettext("The document is not a mapping.")
    )
    fault = FieldError(
        field="",
        message=message,
        remedy=gettext("Start with name:, virtual_cluster: and roles:, or use a template."),
        code="malformed",
    )
    return Typed(text=text, faults=(fault,))


def _translated(text: str, found: Any, imported: Imported) -> Typed:
    if not imported.nodes:
        return Typed(text=text, parsed=found, document=imported.spec, imported=imported)
    fault = FieldError(
        field="",
        message=gettext("This document is a list of nodes, not a job."),
        remedy=gettext("Add nodes one by one on the Add node page, which confirms each host key."),
        code="malformed",
    )
    return Typed(text=text, faults=(fault,))


def with_changes(typed: Typed, made: Sequence[tuple[tuple[str, ...], object]]) -> Typed:
    """Return the text with the form's changes; comments and order are preserved."""
    if not made:
        return typed
    expected: dict[str, Any] = plain(typed.document or {})
    for keys, value in made:
        submit_fields.apply(expected, keys, plain(value))
    text = (
        _edited(typed.text, [keys for keys, _ in made], expected) if not typed.imported else None
    )
    if text is not None:
        edited = read_typed(text)
        if edited.document == expected:
            return edited
    return read_typed(to_yaml(expected))


def with_role(typed: Typed) -> Typed:
    """Add an empty role."""
    roles = submit_fields.roles_of(typed.document)
    number = len(roles) + 1
    while (name := f"worker-{number}") in roles:
        number += 1
    added = {"instances": 1, "devices": 1, "command": "hostname"}
    return with_changes(typed, [(("roles", name), added)])


def without_role(typed: Typed, role: str) -> Typed:
    return with_changes(typed, [(("roles", role), None)])


def line_of(text: str, fault: FieldError) -> int | None:
    """Return the line (from 1) of a fault, or that of its nearest parent."""
    line = message_of(fault.message).params.get("line")
    if isinstance(line, int):
        return line
    return _line_in(_tree(text), fault.field) if fault.field else None


def _line_in(node: yaml.Node | None, path: str) -> int | None:
    line: int | None = None
    for index, key in _STEP.findall(path):
        if index and isinstance(node, yaml.SequenceNode) and int(index) < len(node.value):
            start = node = node.value[int(index)]
        elif key and isinstance(node, yaml.MappingNode) and (entry := entry_of(node, key)):
            start, node = entry
        else:
            break
        line = int(start.start_mark.line) + 1
    return line


def _tree(text: str) -> yaml.Node | None:
    """Return the nodes of a text; None if it is too long or cannot be read."""
    if len(text.encode()) > MOST_EDITED_BYTES:
        return None
    try:
        read_document(text)  # rejects documents that are nested too deeply
        return composed(text)
    except (ImportRefusedError, yaml.YAMLError):
        return None


def _edited(
    text: str, places: Sequence[tuple[str, ...]], expected: Mapping[str, Any]
) -> str | None:
    """Return the text with ``expected`` below each of ``places``; None if not editable."""
    edited: str | None = text
    # Each edit parses the whole text, and a form may post 1,000 fields.
    if len(places) > MOST_EDITS or _tree(text) is None:
        return None
    try:
        for keys in places:
            if edited is None:
                return None
            edited = with_value(edited, keys, expected)
    except yaml.YAMLError:  # an edit before this one broke rare syntax
        return None
    return edited


def with_upload(
    request: PageRequest, typed: Typed, submit_context: SubmitContext
) -> tuple[Typed, tuple[FieldError, ...]]:
    """Store the archive, if any, and name it in the document.

    It belongs to the tenant of the document's virtual cluster.

    Returns:
        The text, and the faults of the archive.
    """
    upload = request.http.FILES.get("upload")
    if upload is None or typed.document is None:
        return typed, ()
    cluster = submit_context.clusters.get(str(typed.document.get("virtual_cluster")))
    if cluster is None:
        fault = FieldError(
            field=FIELD,
            value=upload.name,
            message=gettext("The tenant of the archive is not known."),
            remedy=gettext("Select a virtual cluster first, then the file."),
        )
        return typed, (fault,)
    try:
        row, _ = store_archive(
            viewer=request.viewer,
            tenant_id=cluster.tenant_id,
            name=upload.name or "source",
            content=upload.chunks(PIECE_BYTES),
            storage=worker_settings().storage,
            now=request.now,
            tenant_bytes=worker_settings().archive_bytes,
        )
    except DomainError as error:
        fault = FieldError(
            field=FIELD, value=upload.name, message=error.message, remedy=error.remedy
        )
        return typed, (fault,)
    return with_changes(typed, [(("source",), {"archive": row.sha256})]), ()


def composed(text: str) -> yaml.Node | None:
    """Parse a text into nodes with their places; return None for an empty text.

    Args:
        text: a document that ``parse_document`` has read. libyaml composes by recursion without a
            bound of its own.
    """
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.CSafeLoader)
    return node


def with_value(text: str, keys: Sequence[str], expected: Mapping[str, Any]) -> str | None:
    """Return the text with the value of ``expected`` below ``keys``, or without it.

    The caller parses the result again and compares it with the expected document: anchors, merge
    keys and other rare syntax may come out wrong here.

    Returns:
        None if no single entry in block style can be changed.
    """
    wanted: Any = expected
    node, above = composed(text), None
    for key in keys:
        if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
            break
        if not isinstance(wanted, Mapping):  # an earlier change has replaced the object
            return None
        found = entry_of(node, key)
        if key not in wanted:
            return text if found is None else _without(text, node, found, above, wanted)
        if found is None:
            column = node.value[0][0].start_mark.column
            at = _line_end(text, _end(text, node))
            return f"{text[:at]}\n{' ' * column}{_written(key, wanted[key], column)}{text[at:]}"
        node, wanted, above = found[1], wanted[key], found
    return None if above is None else _replaced(text, above, wanted)


def entry_of(node: yaml.MappingNode, key: str) -> Entry | None:
    """Return the key and value nodes of a mapping's entry."""
    return next((entry for entry in node.value if entry[0].value == key), None)


def _replaced(text: str, entry: Entry, value: object) -> str:
    key = entry[0]
    in_line = isinstance(entry[1], yaml.MappingNode) and bool(entry[1].flow_style)
    start, end = key.start_mark, max(_end(text, entry[1]), text.find(":", key.end_mark.index) + 1)
    written = _written(key.value, value, start.column, in_line=in_line)
    return text[: start.index] + written + text[end:]


def _without(
    text: str, node: yaml.MappingNode, entry: Entry, above: Entry | None, left: object
) -> str | None:
    if len(node.value) == 1:
        return None if above is None else _replaced(text, above, left)
    start = text.rfind("\n", 0, entry[0].start_mark.index) + 1
    end = max(_end(text, entry[1]), entry[0].end_mark.index)
    return text[:start] + text[_line_end(text, end) + 1 :]


def _written(key: str, value: object, column: int, *, in_line: bool = False) -> str:
    """Return an entry as text, starting at its key; lines are indented for a key in ``column``."""
    if in_line:
        return to_yaml({key: value}, in_line=True)[1:-2]
    first, *further = to_yaml({key: value}).removesuffix("\n").split("\n")
    return "\n".join([first, *(" " * column + line if line else "" for line in further)])


def _end(text: str, node: yaml.Node) -> int:
    """Return the end of a node's last value; the end mark of a block comes after its comments."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    start, end = node.start_mark.index, node.end_mark.index
    return start + len(text[start:end].rstrip())


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
