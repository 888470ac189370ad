"""Why a job waits: one vocabulary of stable codes for the engine, the portal and the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
    """One answer to "why does it wait?".

    Attributes:
        code: the stable code.
        text: a full sentence; it names no job, person or tenant other than the asker's own,
            since everybody who may see the job reads it.
        blocked_by: ids of jobs that stand in the way; whoever shows them leaves out or counts
            those that the reader may not see.
        unblock: steps that would help, most useful first; empty: nothing to do but wait.
        claims: the devices that it has claimed from jobs which leave for it (``core/claims.py``).
        free: devices of the guarantee, or idle ones, that ``text`` leaves over; None: it counts
            nothing.
    """

    code: ReasonCode
    text: str
    blocked_by: tuple[int, ...] = ()
    unblock: tuple[str, ...] = ()
    claims: Mapping[str, Any] | None = field(default=None, hash=False)
    free: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The stored form; ``code`` and ``text`` have columns of their own."""
        detail: dict[str, Any] = {
            "blocked_by": list(self.blocked_by),
            "unblock": list(self.unblock),
        }
        if self.free is not None:
            detail["free"] = self.free
        return detail if self.claims is None else {**detail, "claims": dict(self.claims)}
