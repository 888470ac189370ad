"""Result of an importer, and the error for a refused document."""

from dataclasses import dataclass
from typing import Any

from scheduling.compat.messages import SHARED
from scheduling.core.jobspec import InvalidDocumentError, parse
from tessera.messages import Sentence
from tessera.results import LEFT_OUT, NOT_SUPPORTED, TRANSLATED, Remarks


class ImportRefusedError(InvalidDocumentError):
    """A document cannot be imported; ``errors`` lists the reasons, and nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A remark about a translated part with a slightly different meaning in Tessera.

    Attributes:
        field: path in the document; empty for the whole document.
        message: the difference.
    """

    field: str
    message: Sentence

    @property
    def sentence(self) -> Sentence:
        """Return the message, prefixed with its field."""
        if not self.field:
            return self.message
        return _placed("import-remark", self.field, self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """A part of the document without a counterpart in Tessera.

    Attributes:
        field: path in the document.
        value: its value, shortened; never a secret.
        message: the consequence for the result.
        needed: whether the job depends on it, so that the result needs a check.
    """

    field: str
    value: str
    message: Sentence
    needed: bool

    @property
    def sentence(self) -> Sentence:
        """Return the message, prefixed with its field and the heading of stored jobs."""
        code = "import-not-supported" if self.needed else "import-left-out"
        return _placed(code, self.field, self.message)

    def to_json(self) -> dict[str, Any]:
        """Return the part in the form of the API."""
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
        spec: the translation, including the values of secrets; empty for a document of nodes.
        warnings: remarks about slightly different meanings.
        unsupported: parts that were not translated.
        format: name of the format.
        more: further jobs of the same document, such as the other tasks of an array.
        max_parallel: maximum number of concurrent jobs; None for all.
        nodes: nodes of the document, in the form of a request to add a node.
        holds_secrets: whether the text contains secrets, so that it is not stored.
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
        return (self.spec, *self.more) if self.spec else ()

    @property
    def at_once(self) -> int:
        """Return the maximum number of concurrent jobs."""
        return min(len(self.specs), self.max_parallel or len(self.specs))

    @property
    def remarks(self) -> tuple[Remarks, ...]:
        """Return the differences from the document, by the headings of pages, REST and CLI."""

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
        """Return an imported job in the form of the API, without secrets."""
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
    """Return a sentence of any table, prefixed with the path of its field."""
    english = SHARED[code].one % {"field": path, "remark": words}
    return Sentence(english, SHARED.message(code, field=path, remark=words.message))
