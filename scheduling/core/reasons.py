"""Why a job waits: one vocabulary of stable codes for the engine, the portal and the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from scheduling.core.messages import sentence
from tessera.messages import Message, Sentence, message_from, sentence_from


class ReasonCode(StrEnum):
    """The public codes. They are part of the API and never change."""

    INVALID_SPEC = "invalid-spec"
    UNKNOWN_VC = "unknown-vc"
    UNKNOWN_TYPE = "unknown-type"
    UNSUPPORTED_FIELD = "unsupported-field"
    EXCEEDS_VC_MAX = "exceeds-vc-max"
    EXCEEDS_USER_MAX = "exceeds-user-max"
    DEADLINE_INFEASIBLE = "deadline-infeasible"
    VC_GUARANTEE_IN_USE = "vc-guarantee-in-use"
    USER_CAP_REACHED = "user-cap-reached"
    NO_CELL_OF_LEVEL = "no-cell-of-level"
    CELLS_UNHEALTHY = "cells-unhealthy"
    CPU_OR_MEMORY = "cpu-or-memory"
    NO_NODE_WITH_DOCKER = "no-node-with-docker"
    NODE_NOT_ISOLATED = "node-not-isolated"
    NODE_DEDICATED = "node-dedicated"
    BEHIND_HIGHER_PRIORITY = "behind-higher-priority"
    WAITING_VICTIM_CHECKPOINT = "waiting-victim-checkpoint"
    HELD = "held"
    HELD_BY_POLICY = "held-by-policy"
    NOT_BEFORE = "not-before"
    AFTER_JOB = "after-job"
    RESERVATION = "reservation"
    OPPORTUNISTIC_NO_IDLE = "opportunistic-no-idle"
    OPPORTUNISTIC_CAP = "opportunistic-cap"
    BACKOFF_AFTER_FAILURE = "backoff-after-failure"
    SCHEDULER_NOT_RUNNING = "scheduler-not-running"
    WAITING_FOR_ROUND = "waiting-for-round"


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
    return Sentence(text, message_from(detail["message"])) if "message" in detail else text


def stored_steps(detail: Mapping[str, Any]) -> tuple[str, ...]:
    """Remedies from a stored reason, in the format of ``Reason.to_json``."""
    return tuple(sentence_from(step) for step in detail.get("unblock", ()))


def with_message(line: Mapping[str, Any]) -> dict[str, Any]:
    """A stored step or refusal whose ``text`` carries the message, if the row has one."""
    return {**line, "text": stored_text(str(line["text"]), line)}
