"""Parsing of foreign documents, which reports every key that no importer uses."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from scheduling.compat.messages import phrase
from scheduling.compat.result import Imported, ImportRefusedError, Remark, Unsupported
from scheduling.core.jobspec import FieldError, InvalidJobSpecError, parse
from scheduling.core.jobspec.errors import HIDDEN, DocumentPlace, RefusalError, may_be_secret, show
from scheduling.core.jobspec.scalars import read_bool, read_integer, read_string, wrong_type
from scheduling.core.jobspec.table import refuse_unknown
from tessera.messages import Sentence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParseReport:
    """Errors and remarks collected while a document is parsed."""

    errors: list[Any] = field(default_factory=list)
    warnings: list[Remark] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)

    def warn(self, place: DocumentPlace, message: Sentence) -> None:
        """Add a warning about a part with a slightly different meaning in Tessera."""
        self.warnings.append(Remark(field=place.path, message=message))

    def leave_out(
        self, place: DocumentPlace, value: object, message: Sentence, *, needed: bool
    ) -> None:
        """Add a part without a counterpart in Tessera."""
        key = place.path.rpartition(".")[2]
        hidden = place.hidden or may_be_secret(key)
        self.unsupported.append(
            Unsupported(
                field=place.path,
                value=HIDDEN if hidden else show(value),
                message=message,
                needed=needed,
            )
        )

    def raise_errors(self) -> None:
        """Raise the collected errors, if any.

        Raises:
            ImportRefusedError: at least one error was collected.
        """
        if self.errors:
            raise ImportRefusedError(self.errors)


class Section:
    """One object of the document, from which an importer removes the keys that it uses."""

    def __init__(self, value: object, place: DocumentPlace, report: ParseReport) -> None:
        self.place = place
        self.report = report
        self._left: dict[Any, Any] = {}
        self._broken = False
        if isinstance(value, Mapping):
            self._left = dict(value)
        elif value is not None:
            self._broken = True
            place.note(value, wrong_type(value, "an object", phrase("import-write-keys")))

    def at(self, key: str) -> DocumentPlace:
        return self.place.child(key)

    def take(self, key: str) -> Any:
        return self._left.pop(key, None)

    def has(self, key: str) -> bool:
        """Return whether the object has ``key``, even with the value null."""
        return key in self._left

    def peek(self, key: str) -> Any:
        """Return the value at ``key`` without removing it."""
        return self._left.get(key)

    def rename(self, old: str, new: str) -> None:
        """Accept ``old`` as the name of ``new`` in older versions."""
        if old not in self._left:
            return
        value = self._left.pop(old)
        if self._left.get(new) not in (None, value):
            self.at(old).refuse(
                value,
                phrase("import-contradicts", key=new),
                phrase("import-keep-only", key=new),
                "conflict",
            )
        self._left[new] = value
        self.report.warn(self.at(old), phrase("import-renamed", key=new))

    def read(self, key: str, read: Callable[[object], T], *, required: bool = False) -> T | None:
        """Return the parsed value at ``key``; None if it is missing, null or not valid."""
        value = self.take(key)
        place = self.at(key)
        if value is None:
            if required and not self._broken:
                place.refuse(
                    value,
                    phrase("import-missing"),
                    phrase("import-give", key=key),
                    "missing-field",
                )
            return None
        try:
            return read(value)
        except RefusalError as refusal:
            place.note(value, refusal)
            return None

    def text(self, key: str, *, required: bool = False) -> str | None:
        """Return a string; see ``read``."""
        return self.read(
            key, lambda value: read_string(value, phrase("import-write-text")), required=required
        )

    def integer(
        self, key: str, lowest: int, highest: int, *, required: bool = False
    ) -> int | None:
        """Return an integer in a range; see ``read``."""
        return self.read(
            key, lambda value: read_integer(value, lowest, highest), required=required
        )

    def boolean(self, key: str) -> bool | None:
        """Return a boolean; see ``read``."""
        return self.read(key, read_bool)

    def section(self, key: str) -> "Section":
        """Return the object at ``key``; an empty one if it is missing."""
        return Section(self.take(key), self.at(key), self.report)

    def items(self, key: str) -> list[tuple[Any, DocumentPlace]]:
        """Return the elements of the list at ``key``, each with its place."""
        value, place = self.take(key), self.at(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            place.note(value, wrong_type(value, "a list", phrase("import-write-list")))
            return []
        return [(item, place.item(index)) for index, item in enumerate(value)]

    def sections(self, key: str) -> list["Section"]:
        """Return the objects of the list at ``key``."""
        return [Section(item, place, self.report) for item, place in self.items(key)]

    def entries(self) -> list[tuple[str, Any, DocumentPlace]]:
        """Remove and return all remaining entries, for objects whose keys are names."""
        left, self._left = self._left, {}
        found = []
        for key, value in left.items():
            if isinstance(key, str):
                found.append((key, value, self.at(key)))
            else:
                self.place.child(key).refuse(
                    key, phrase("import-key-not-text"), phrase("import-quote-key"), "wrong-type"
                )
        return found

    def leave_out(self, key: str, message: Sentence, *, needed: bool) -> None:
        """Report ``key``, if present, as a part without a counterpart."""
        value = self.take(key)
        if value not in (None, False, [], {}):
            self.report.leave_out(self.at(key), value, message, needed=needed)

    def rest(self) -> dict[Any, Any]:
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Report every remaining key as unknown."""
        for key, value, place in self.entries():
            self.report.leave_out(place, value, phrase("import-unknown", key=key), needed=True)


def refuse_unknown_keys(section: Section, names: Sequence[str]) -> None:
    """Reject every remaining key, and suggest the most similar valid name."""
    refuse_unknown(section.rest(), names, section.place)


Paths = Sequence[tuple[str, str]]


def finish_translation(
    top: Section,
    *,
    spec: dict[str, Any],
    nodes: tuple[dict[str, Any], ...],
    paths: Paths,
    format: str,
    holds_secrets: bool,
) -> Imported:
    """Return the result of an import of one job, or of nodes with an empty ``spec``.

    Raises:
        ImportRefusedError: the document has faults, or the native specification is not valid.
    """
    top.finish()
    top.report.raise_errors()
    if spec:
        check_translation(spec, paths)
    return Imported(
        spec=spec,
        nodes=nodes,
        warnings=tuple(top.report.warnings),
        unsupported=tuple(top.report.unsupported),
        format=format,
        holds_secrets=holds_secrets,
    )


def check_translation(spec: Mapping[str, Any], paths: Paths) -> None:
    """Validate a translation, and report faults by the field names of the original.

    Args:
        spec: the native document.
        paths: patterns of native paths with the corresponding original paths; all are tried.

    Raises:
        ImportRefusedError: the native specification is not valid.
    """
    try:
        parse(spec)
    except InvalidJobSpecError as refused:
        raise ImportRefusedError([_renamed(error, paths) for error in refused.errors]) from None


def _renamed(error: FieldError, paths: Paths) -> FieldError:
    path = error.field
    for pattern, wanted in paths:
        path = re.sub(pattern, wanted, path)
    return replace(error, field=path)
