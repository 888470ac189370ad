"""What an importer returns, and the one error with which it refuses."""

from dataclasses import dataclass
from typing import Any

from scheduling.core.jobspec import InvalidDocumentError, parse
from tessera.results import Remarks, remarks_of


class ImportRefusedError(InvalidDocumentError):
    """A document cannot be imported; ``errors`` says why, and nothing has been changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """Something in the document that has no counterpart here.

    Attributes:
        field: where it stands.
        value: what stands there, shortened; never a secret.
        message: what that means for the result, a sentence.
        needed: the result would not do the same without it, so nobody should run it unasked.
    """

    field: str
    value: str
    message: str
    needed: bool

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
        warnings: what was translated but means something slightly different here, sentences.
        unsupported: what was not translated.
        format: whose document it was.
        more: further jobs of the same document, such as the other tasks of an array.
        max_parallel: how many of the jobs may run at a time; None: all.
        nodes: what a document of nodes lists, as the address of nodes takes them.
        holds_secrets: the text holds values that nobody shall read, so that it is not kept.
    """

    spec: dict[str, Any]
    warnings: tuple[str, ...]
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
    def loses_something(self) -> bool:
        """Whether something was left out that the original needs."""
        return any(entry.needed for entry in self.unsupported)

    @property
    def remarks(self) -> tuple[Remarks, ...]:
        """The differences from the document, under the headings of pages, REST and CLI."""
        return remarks_of(self.warnings, [entry.to_json() for entry in self.unsupported])

    def job_to_json(self) -> dict[str, Any]:
        """An imported job as the API shows it: the canonical spec, without secrets."""
        return {
            "spec": parse(self.spec).to_json() if self.spec else None,
            "more": [parse(spec).to_json() for spec in self.more],
            "nodes": list(self.nodes),
            "warnings": list(self.warnings),
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
