"""Reason for a job's wait: a code of ``tessera.reasons`` and its message, in memory and stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduling.core.messages import sentence
from tessera.messages import Message, Sentence, sentence_from
from tessera.reasons import ReasonCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason for which a job waits.

    Attributes:
        code: stable reason code.
        message: a full sentence without names of other jobs, people or tenants, since everyone who
            may see the job reads it.
        blocked_by: IDs of blocking jobs; a page only counts those that the reader may not see.
        unblock: remedies, most useful first; empty if only time helps.
        claims: devices claimed from jobs that leave for this one (``core.round.claims``).
        free: free devices of the guarantee, or idle ones, in ``message``; None if it counts none.
    """

    code: ReasonCode
    message: Message
    blocked_by: tuple[int, ...] = ()
    unblock: tuple[Message, ...] = ()
    claims: Mapping[str, Any] | None = field(default=None, hash=False)
    free: int | None = None

    @property
    def text(self) -> Sentence:
        """The English text."""
        return sentence(self.message)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form; ``code`` and the English text have separate columns."""
        detail: dict[str, Any] = {
            "message": self.message.to_json(),
            "blocked_by": list(self.blocked_by),
            "unblock": [sentence(step).to_json() for step in self.unblock],
        }
        if self.free is not None:
            detail["free"] = self.free
        return detail if self.claims is None else {**detail, "claims": dict(self.claims)}


def stored_text(text: str, detail: Mapping[str, Any]) -> str:
    """Return the text of a stored reason, with its message if the row has one.

    Args:
        text: the stored English text.
        detail: document from ``Reason.to_json``.
    """
    return Sentence(text, detail["message"]) if "message" in detail else text


def stored_steps(detail: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the remedies from a stored reason, in the format of ``Reason.to_json``."""
    return tuple(sentence_from(step) for step in detail.get("unblock", ()))


def with_message(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored step or refusal whose ``text`` carries the message, if the row has one."""
    return {**line, "text": stored_text(str(line["text"]), line)}
