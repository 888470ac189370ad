"""Reading foreign documents: a key that no importer takes is reported."""

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
class Report:
    """The errors and remarks of a document that is being read."""

    errors: list[Any] = field(default_factory=list)
    warnings: list[Remark] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)

    def warn(self, place: DocumentPlace, message: Sentence) -> None:
        """Note something that means something slightly different here."""
        self.warnings.append(Remark(field=place.path, message=message))

    def leave_out(
        self, place: DocumentPlace, value: object, message: Sentence, *, needed: bool
    ) -> None:
        """Note something that has no counterpart."""
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
        """Stop here if anything was wrong.

        Raises:
            ImportRefusedError: with all of it.
        """
        if self.errors:
            raise ImportRefusedError(self.errors)


class Section:
    """One object of the document, from which keys are taken one by one."""

    def __init__(self, value: object, place: DocumentPlace, report: Report) -> None:
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
        """The place of a key."""
        return self.place.child(key)

    def take(self, key: str) -> Any:
        """Remove and return the value at ``key``, or None."""
        return self._left.pop(key, None)

    def has(self, key: str) -> bool:
        """Whether the object has ``key``, even with null."""
        return key in self._left

    def peek(self, key: str) -> Any:
        """The value at ``key``, which stays there."""
        return self._left.get(key)

    def rename(self, old: str, new: str) -> None:
        """Accept the name of ``new`` in older versions."""
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
        """The value at ``key``, checked; None if it is absent, null or wrong."""
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
        """A text."""
        return self.read(
            key, lambda value: read_string(value, phrase("import-write-text")), required=required
        )

    def integer(
        self, key: str, lowest: int, highest: int, *, required: bool = False
    ) -> int | None:
        """A whole number."""
        return self.read(
            key, lambda value: read_integer(value, lowest, highest), required=required
        )

    def boolean(self, key: str) -> bool | None:
        """True or false."""
        return self.read(key, read_bool)

    def section(self, key: str) -> "Section":
        """The object at ``key``; an empty one if it is absent."""
        return Section(self.take(key), self.at(key), self.report)

    def items(self, key: str) -> list[tuple[Any, DocumentPlace]]:
        """The elements of the list at ``key``, each with its place."""
        value, place = self.take(key), self.at(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            place.note(value, wrong_type(value, "a list", phrase("import-write-list")))
            return []
        return [(item, place.item(index)) for index, item in enumerate(value)]

    def sections(self, key: str) -> list["Section"]:
        """The objects of the list at ``key``."""
        return [Section(item, place, self.report) for item, place in self.items(key)]

    def entries(self) -> list[tuple[str, Any, DocumentPlace]]:
        """All that is left, for objects whose keys are names; nothing is left then."""
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
        """Report ``key``, if it is given, as something without a counterpart."""
        value = self.take(key)
        if value not in (None, False, [], {}):
            self.report.leave_out(self.at(key), value, message, needed=needed)

    def rest(self) -> dict[Any, Any]:
        """Remove and return all that is left."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Report every key that is left as unknown."""
        for key, value, place in self.entries():
            self.report.leave_out(place, value, phrase("import-unknown", key=key), needed=True)


def refuse_unknown_keys(section: Section, names: Sequence[str]) -> None:
    """Refuse every key that is left, and suggest the one that was meant."""
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
    """The result of reading a document with one job, or with nodes and an empty ``spec``.

    Raises:
        ImportRefusedError: something in it is wrong, or the native spec would be refused.
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
    """Check a translation and name what is wrong by the fields of the original.

    Args:
        spec: the native document.
        paths: patterns of our paths with what stood there in the original; all are tried.

    Raises:
        ImportRefusedError: the native spec would be refused.
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
