"""How a state is shown: icon, word and tone, never one of them alone."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLook:
    """The three signals of one state.

    Attributes:
        word: what is read.
        icon: id of the symbol in ``img/icons.svg``.
        tone: ``ok``, ``busy``, ``warn``, ``bad``, or empty for grey.
        says: one short line that explains the state.
    """

    word: str
    icon: str
    tone: str
    says: str


def _look(word: str, icon: str, tone: str, says: str) -> StateLook:
    return StateLook(word=word, icon=icon, tone=tone, says=says)


JOB_STATES: Final[dict[str, StateLook]] = {
    "queued": _look("Queued", "queued", "", "waits, and says why"),
    "admitted": _look("Admitted", "admitted", "busy", "cells are bound"),
    "starting": _look("Starting", "starting", "busy", "preparing on its nodes"),
    "running": _look("Running", "running", "ok", "every member runs"),
    "suspect": _look("Suspect", "suspect", "warn", "no word yet"),
    "preempting": _look("Preempting", "preempting", "warn", "saving, then leaving"),
    "stopping": _look("Stopping", "stopping", "warn", "asked to end"),
    "succeeded": _look("Succeeded", "succeeded", "ok", "ended well"),
    "failed": _look("Failed", "failed", "bad", "ended badly, with a class"),
    "stopped": _look("Stopped", "stopped", "", "ended by a person"),
}
END_REASONS: Final[dict[str, StateLook]] = {
    "preempted": _look("Preempted", "preempting", "warn", "left its devices for another job"),
    "resized": _look("Resized", "preempting", "", "continues with another number of devices"),
    "moved": _look("Moved", "preempting", "", "continues on other devices"),
    "reverted": _look("Reverted", "preempting", "", "continues with its previous size"),
    "drained": _look("Drained", "preempting", "", "left a node that was drained"),
}
"""Why an attempt ended, where that is not a state of its job."""

HELD: Final = _look("On hold", "held", "", "waits until it is released")
"""How a job in the queue is shown while somebody holds it; its state is still ``queued``."""

NODE_STATES: Final[dict[str, StateLook]] = {
    "ready": _look("Ready", "succeeded", "ok", "takes jobs"),
    "suspect": _look("Suspect", "suspect", "warn", "probes disagree"),
    "down": _look("Down", "failed", "bad", "proved dead"),
    "cordoned": _look("Cordoned", "paused", "", "takes no new jobs"),
    "draining": _look("Draining", "paused", "warn", "empties itself"),
}


def job_state(state: str) -> StateLook:
    """The look of a job state, an end reason or ``held``; an unknown one shows its own name."""
    if state == "held":
        return HELD
    return (
        JOB_STATES.get(state)
        or END_REASONS.get(state)
        or _look(state.capitalize(), "suspect", "", "")
    )


def node_state(state: str) -> StateLook:
    """The look of a node state; an unknown one is shown by its own name."""
    return NODE_STATES.get(state) or _look(state.capitalize(), "suspect", "", "")
