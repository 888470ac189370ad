"""Appearance of states: icon, word and tone together."""

from dataclasses import dataclass
from typing import Final

from portal.i18n import gettext_lazy


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLook:
    """The three signals of one state.

    Attributes:
        word: the label.
        icon: id of the symbol in ``img/icons.svg``.
        tone: ``ok``, ``busy``, ``warn``, ``bad``, or empty for grey.
        summary: a one-line explanation.
    """

    word: str
    icon: str
    tone: str
    summary: str


def _look(word: str, icon: str, tone: str, summary: str) -> StateLook:
    return StateLook(word=word, icon=icon, tone=tone, summary=summary)


JOB_STATES: Final[dict[str, StateLook]] = {
    "queued": _look(
        gettext_lazy("Queued"),
        "queued",
        "",
        gettext_lazy("waiting for devices; the job page shows the reason"),
    ),
    "admitted": _look(
        gettext_lazy("Admitted"), "admitted", "busy", gettext_lazy("devices reserved")
    ),
    "starting": _look(
        gettext_lazy("Starting"), "starting", "busy", gettext_lazy("preparing on the nodes")
    ),
    "running": _look(gettext_lazy("Running"), "running", "ok", gettext_lazy("all members run")),
    "suspect": _look(
        gettext_lazy("Suspect"), "suspect", "warn", gettext_lazy("node not responding")
    ),
    "preempting": _look(
        gettext_lazy("Preempting"),
        "preempting",
        "warn",
        gettext_lazy("saving a checkpoint before it releases its devices"),
    ),
    "stopping": _look(
        gettext_lazy("Stopping"), "stopping", "warn", gettext_lazy("stop requested")
    ),
    "succeeded": _look(gettext_lazy("Succeeded"), "succeeded", "ok", gettext_lazy("completed")),
    "failed": _look(
        gettext_lazy("Failed"),
        "failed",
        "bad",
        gettext_lazy("failed; the job page shows the failure class"),
    ),
    "stopped": _look(
        gettext_lazy("Stopped"), "stopped", "", gettext_lazy("stopped by a user or by a rule")
    ),
}
END_REASONS: Final[dict[str, StateLook]] = {
    "preempted": _look(
        gettext_lazy("Preempted"),
        "preempting",
        "warn",
        gettext_lazy("released its devices for another job"),
    ),
    "resized": _look(
        gettext_lazy("Resized"),
        "preempting",
        "",
        gettext_lazy("continues with another number of devices"),
    ),
    "moved": _look(
        gettext_lazy("Moved"), "preempting", "", gettext_lazy("continues on other devices")
    ),
    "reverted": _look(
        gettext_lazy("Reverted"),
        "preempting",
        "",
        gettext_lazy("continues with its previous size"),
    ),
    "drained": _look(
        gettext_lazy("Drained"), "preempting", "", gettext_lazy("preempted on a drained node")
    ),
}
"""Labels for ends of attempts that are not states of the job."""

HELD: Final = _look(gettext_lazy("On hold"), "held", "", gettext_lazy("on hold until released"))
"""Label of a held job in the queue; its state is still ``queued``."""

NODE_STATES: Final[dict[str, StateLook]] = {
    "ready": _look(gettext_lazy("Ready"), "succeeded", "ok", gettext_lazy("accepts jobs")),
    "suspect": _look(
        gettext_lazy("Suspect"), "suspect", "warn", gettext_lazy("inconsistent health checks")
    ),
    "down": _look(gettext_lazy("Down"), "failed", "bad", gettext_lazy("confirmed down")),
    "cordoned": _look(gettext_lazy("Cordoned"), "paused", "", gettext_lazy("accepts no new jobs")),
    "draining": _look(
        gettext_lazy("Draining"),
        "paused",
        "warn",
        gettext_lazy("preempting running jobs"),
    ),
}


def job_state(state: str) -> StateLook:
    """Return label and tone of a job state, an end reason or ``held``; the code if unknown."""
    if state == "held":
        return HELD
    return (
        JOB_STATES.get(state)
        or END_REASONS.get(state)
        or _look(state.capitalize(), "suspect", "", "")
    )


def node_state(state: str) -> StateLook:
    """Return label and tone of a node state; the code if unknown."""
    return NODE_STATES.get(state) or _look(state.capitalize(), "suspect", "", "")
