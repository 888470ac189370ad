"""The result of an importer, and the error of a refused document."""

from dataclasses import dataclass
from typing import Any

from scheduling.compat.messages import SHARED
from scheduling.core.jobspec import InvalidDocumentError, parse
from tessera.messages import Sentence
from tessera.results import LEFT_OUT, NOT_SUPPORTED, TRANSLATED, Remarks


class ImportRefusedError(InvalidDocumentError):
    """A document cannot be imported; ``errors`` lists the reasons; nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something that was translated and means something slightly different here.

    Attributes:
        field: path in the document; empty for all of it.
        message: what is different.
    """

    field: str
    message: Sentence

    @property
    def sentence(self) -> Sentence:
        """The message behind its field."""
        if not self.field:
            return self.message
        return _placed("import-remark", self.field, self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """Something in the document that has no counterpart here.

    Attributes:
        field: path in the document.
        value: its value, shortened; never a secret.
        message: the consequence for the result.
        needed: the result does not do the same without it, so nobody should run it unchecked.
    """

    field: str
    value: str
    message: Sentence
    needed: bool

    @property
    def sentence(self) -> Sentence:
        """The message behind its field, with the heading that a stored job shows."""
        code = "import-not-supported" if self.needed else "import-left-out"
        return _placed(code, self.field, self.message)

    def to_json(self) -> dict[str, Any]:
        """The entry as the API shows it."""
        return {
            "field": self.field,
            "value": self.value,
            "message": self.message,
            "needed": self.needed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A translated document.

    Attributes:
        spec: the translation; it holds the values of secrets. Empty for a document of nodes.
        warnings: remarks on what means something slightly different here.
        unsupported: what was not translated.
        format: name of the format.
        more: further jobs of the same document, such as the other tasks of an array.
        max_parallel: how many of the jobs may run at a time; None: all.
        nodes: what a document of nodes lists, as the address of nodes takes them.
        holds_secrets: the text contains secrets, so it is not stored.
    """

    spec: dict[str, Any]
    warnings: tuple[Remark, ...]
    unsupported: tuple[Unsupported, ...]
    format: str = "openpai"
    more: tuple[dict[str, Any], ...] = ()
    max_parallel: int | None = None
    nodes: tuple[dict[str, Any], ...] = ()
    holds_secrets: bool = False

    @property
    def specs(self) -> tuple[dict[str, Any], ...]:
        """All jobs of the document, in order."""
        return (self.spec, *self.more) if self.spec else ()

    @property
    def at_once(self) -> int:
        """How many of the jobs may run at a time."""
        return min(len(self.specs), self.max_parallel or len(self.specs))

    @property
    def remarks(self) -> tuple[Remarks, ...]:
        """The differences from the document, under the headings of pages, REST and CLI."""

        def lost(*, needed: bool) -> tuple[tuple[str, str], ...]:
            return tuple(
                (entry.field, entry.message)
                for entry in self.unsupported
                if entry.needed is needed
            )

        translated = tuple((remark.field, remark.message) for remark in self.warnings)
        found = (
            Remarks(heading=TRANSLATED, entries=translated),
            Remarks(heading=LEFT_OUT, entries=lost(needed=False)),
            Remarks(heading=NOT_SUPPORTED, entries=lost(needed=True)),
        )
        return tuple(remarks for remarks in found if remarks.entries)

    def job_to_json(self) -> dict[str, Any]:
        """An imported job as the API shows it: the canonical spec, without secrets."""
        return {
            "spec": parse(self.spec).to_json() if self.spec else None,
            "more": [parse(spec).to_json() for spec in self.more],
            "nodes": list(self.nodes),
            "warnings": [remark.sentence for remark in self.warnings],
            "unsupported": [entry.to_json() for entry in self.unsupported],
            "remarks": [
                {
                    "heading": remarks.heading,
                    "entries": [
                        {"field": field, "message": message} for field, message in remarks.entries
                    ],
                }
                for remarks in self.remarks
            ],
        }


def _placed(code: str, path: str, words: Sentence) -> Sentence:
    """A sentence of any table behind the path of its field."""
    english = SHARED[code].one % {"field": path, "remark": words}
    return Sentence(english, SHARED.message(code, field=path, remark=words.message))
