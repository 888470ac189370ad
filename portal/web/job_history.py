"""A job's history as the input of the timeline: states by attempt, devices over time, marks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.components.history import Held, HistoryDrawing, Mark, StateSpan, history
from scheduling.core.lifecycle import TERMINAL, PreemptionRule
from scheduling.jobs.queries.events import JobLife, StateChange
from scheduling.jobs.queries.job_detail import AttemptView

_MARKS: Final = {
    "preempt": "preempted",
    "retry": gettext_lazy("retried"),
    "contact-lost": gettext_lazy("no contact to node"),
}
_CAUSES: Final[Mapping[str, str]] = {
    PreemptionRule.RESIZE: gettext_lazy("resized"),
    PreemptionRule.MOVE: gettext_lazy("moved"),
    PreemptionRule.REVERT: gettext_lazy("reverted"),
}


def history_of(
    life: JobLife, attempts: Sequence[AttemptView], *, now: datetime
) -> HistoryDrawing | None:
    """Draw the history; None for a job without one.

    Args:
        life: its intervals by state.
        attempts: oldest first.
        now: end of the drawing for a live job.
    """
    changes = life.changes
    spells = [
        StateSpan(state=change.state, start=change.at, end=end, attempt=change.attempt or 0)
        for change, end in zip(changes, _ends(changes, now), strict=True)
        if change.state not in TERMINAL
    ]
    held = [
        Held(
            devices=sum(len(member.devices) for member in attempt.members),
            start=attempt.created_at,
            end=attempt.ended_at or now,
        )
        for attempt in attempts
    ]
    return history(spells, held, marks=marks_of(life), checkpoints=life.checkpoints)


def marks_of(life: JobLife) -> list[Mark]:
    """Return the marks of changes: preemptions, resizes, moves, retries, silent nodes."""
    return [
        Mark(
            at=change.at,
            what=_mark(change),
            cause=_("attempt %(attempt)s") % {"attempt": change.attempt or 1},
        )
        for change in life.changes
        if change.kind in _MARKS
    ]


def _mark(change: StateChange) -> str:
    """Describe a mark: a restart at another size is a resize, not just a preemption."""
    return _CAUSES.get(change.cause) or _MARKS[change.kind]


def _ends(changes: Sequence[StateChange], now: datetime) -> list[datetime]:
    return [*(change.at for change in changes[1:]), now][: len(changes)]
