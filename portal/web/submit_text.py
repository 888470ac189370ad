"""The YAML pane: parse the typed text, write the form's changes and uploads into it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml
from django.utils.translation import gettext

from portal.api.documents import read_document, recognise, translate
from portal.web import submit_fields
from portal.web.job_text import plain, to_yaml
from portal.web.viewing import PageRequest
from portal.web.yaml_edits import composed, entry_of, with_value
from scheduling.compat.context import Context
from scheduling.compat.result import Imported, ImportRefusedError
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.archives import store_archive
from scheduling.jobs.validation import from_spec_error
from tenants.errors import DomainError, FieldError
from tessera.messages import message_of
from workers.conf import ARCHIVES_DIR, worker_settings

MOST_EDITED_BYTES: Final = 64 << 10
MOST_EDITS: Final = 20
_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A text and its parsed content.

    Attributes:
        text: as typed, or with the form's changes.
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
    """Parse ``text``: a native document, another system's with its translation, or neither.

    Args:
        text: as typed or pasted.
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
    """Remove a role."""
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
        read_document(text)  # bounds the depth
        return composed(text)
    except (ImportRefusedError, yaml.YAMLError):
        return None


def _edited(
    text: str, places: Sequence[tuple[str, ...]], expected: Mapping[str, Any]
) -> str | None:
    """The text with ``expected`` below each of ``places``; None if it cannot be edited."""
    edited: str | None = text
    # Each edit composes the whole text, and a form may post 1,000 fields.
    if len(places) > MOST_EDITS or _tree(text) is None:
        return None
    for keys in places:
        if edited is None:
            return None
        edited = with_value(edited, keys, expected)
    return edited


PIECE_BYTES = 1 << 20
FIELD = "source.archive"


def with_upload(
    request: PageRequest, typed: Typed, ground: SubmitContext
) -> tuple[Typed, tuple[FieldError, ...]]:
    """Store the archive, if any, and name it in the document.

    It belongs to the tenant of the document's virtual cluster.

    Returns:
        The text, and the faults of the archive.
    """
    upload = request.http.FILES.get("upload")
    if upload is None or typed.document is None:
        return typed, ()
    cluster = ground.clusters.get(str(typed.document.get("virtual_cluster")))
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
            archives_dir=worker_settings().data_dir / ARCHIVES_DIR,
            now=request.now,
            tenant_bytes=worker_settings().archive_bytes,
        )
    except DomainError as error:
        fault = FieldError(
            field=FIELD, value=upload.name, message=error.message, remedy=error.remedy
        )
        return typed, (fault,)
    return with_changes(typed, [(("source",), {"archive": row.sha256})]), ()
