"""The reason of one job: a code of ``tessera.reasons`` with its message, in memory and stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduling.core.messages import sentence
from tessera.messages import Message, Sentence, sentence_from
from tessera.reasons import ReasonCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason why a job waits.

    Attributes:
        code: the stable code.
        message: a full sentence; it names no other job, person or tenant, since everybody who may
            see the job reads it.
        blocked_by: ids of blocking jobs; a page omits or counts those that the reader may not see.
        unblock: remedies, most useful first; empty: only time helps.
        claims: devices claimed from jobs that leave for this one (``core.round.claims``).
        free: free devices of the guarantee, or idle ones, in ``message``; None: it does not count
            any.
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
        """The stored form; ``code`` and the English text have columns of their own."""
        detail: dict[str, Any] = {
            "message": self.message.to_json(),
            "blocked_by": list(self.blocked_by),
            "unblock": [sentence(step).to_json() for step in self.unblock],
        }
        if self.free is not None:
            detail["free"] = self.free
        return detail if self.claims is None else {**detail, "claims": dict(self.claims)}


def stored_text(text: str, detail: Mapping[str, Any]) -> str:
    """The text of a stored reason, with its message if the row has one.

    Args:
        text: the English text of its time.
        detail: as ``Reason.to_json``.
    """
    return Sentence(text, detail["message"]) if "message" in detail else text


def stored_steps(detail: Mapping[str, Any]) -> tuple[str, ...]:
    """Remedies from a stored reason, in the format of ``Reason.to_json``."""
    return tuple(sentence_from(step) for step in detail.get("unblock", ()))


def with_message(line: Mapping[str, Any]) -> dict[str, Any]:
    """A stored step or refusal whose ``text`` carries the message, if the row has one."""
    return {**line, "text": stored_text(str(line["text"]), line)}
