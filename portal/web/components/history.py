"""The state timeline of a job: states by attempt, devices as steps, marks; one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils.translation import gettext as _

from portal.web.components import words
from portal.web.components.states import job_state

SHORTEST_PERCENT: Final = 0.6
SHORTEST_SECONDS: Final = 0.01
WORDS_FROM_PERCENT: Final = 9.0
NUMBER_FROM_PERCENT: Final = 4.0
LABELS_APART_PERCENT: Final = 18.0
LANE_HEIGHT: Final = 44
GRID_SECONDS: Final = (10, 30, 60, 300, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400, 604_800)
MOST_GRID_LINES: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpan:
    """A job was in ``state`` from ``start`` to ``end`` during an attempt (0 before the first)."""

    state: str
    start: datetime
    end: datetime
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job held ``devices`` from ``start`` to ``end``."""

    devices: int
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A change of the job: ``16 → 8`` because of ``prod job 2426``."""

    at: datetime
    what: str
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """A rectangle: ``x``, ``width`` and ``middle`` in percent, ``y`` and ``height`` in pixels."""

    x: str
    width: str
    middle: str
    title: str
    text: str = ""
    tone: str = ""
    y: int = 0
    height: int = 0

    @property
    def text_y(self) -> int:
        """Return the baseline of text in the middle of the rectangle."""
        return self.y + self.height // 2 + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Text at a position on the axis; ``anchor`` as in SVG."""

    x: str
    text: str
    anchor: str = "start"
    second: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryDrawing:
    """Input of the template: the drawing, and the same as a sentence and rows."""

    states: tuple[Rectangle, ...]
    attempts: tuple[Label, ...]
    steps: tuple[Rectangle, ...]
    grid: tuple[Label, ...]
    marks: tuple[Label, ...]
    checkpoints: tuple[str, ...]
    summary: str
    rows: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    start: datetime
    seconds: float

    def at(self, moment: datetime) -> float:
        share = (moment - self.start).total_seconds() / self.seconds
        return 100 * min(max(share, 0.0), 1.0)


def history(
    spells: Sequence[StateSpan],
    held: Sequence[Held] = (),
    *,
    marks: Sequence[Mark] = (),
    checkpoints: Sequence[datetime] = (),
) -> HistoryDrawing | None:
    """Draw a job's history; None if it has none yet.

    Args:
        spells: spans in order of time, without overlaps.
        held: devices over time; zero may be omitted.
        marks: resizes, preemptions, failures.
        checkpoints: times of saving.
    """
    if not spells:
        return None
    length = (spells[-1].end - spells[0].start).total_seconds()
    axis = _Axis(spells[0].start, max(length, SHORTEST_SECONDS))
    most = max((each.devices for each in held), default=0)
    return HistoryDrawing(
        states=tuple(_state_box(spell, axis) for spell in spells),
        attempts=_attempts(spells, axis),
        steps=tuple(_step(each, most, axis) for each in held if each.devices),
        grid=_grid(axis),
        marks=tuple(
            Label(x=_pc(axis.at(mark.at)), text=mark.what, second=mark.cause) for mark in marks
        ),
        checkpoints=tuple(_pc(axis.at(moment)) for moment in checkpoints),
        summary=_summary(spells, held),
        rows=tuple(_row(spell) for spell in spells),
    )


def _pc(value: float) -> str:
    return f"{value:.2f}%"


def _state_box(spell: StateSpan, axis: _Axis) -> Rectangle:
    look = job_state(spell.state)
    x = axis.at(spell.start)
    width = max(axis.at(spell.end) - x, SHORTEST_PERCENT)
    lasted = words.duration((spell.end - spell.start).total_seconds())
    text = f"{look.word.lower()} {lasted}" if width >= 2 * WORDS_FROM_PERCENT else lasted
    return Rectangle(
        x=_pc(min(x, 100 - width)),
        width=_pc(width),
        middle=_pc(x + width / 2),
        title=f"{look.word} {lasted}{_(', ')}{_range(spell.start, spell.end)}",
        text=text if width >= WORDS_FROM_PERCENT else "",
        tone=look.tone or spell.state,
    )


def _attempts(spells: Sequence[StateSpan], axis: _Axis) -> tuple[Label, ...]:
    first: dict[int, datetime] = {}
    for spell in spells:
        if spell.attempt:
            first.setdefault(spell.attempt, spell.start)
    labels: list[Label] = []
    places = [axis.at(start) for start in first.values()]
    last = -100.0
    nexts = [*places[1:], 200.0][: len(places)]
    for attempt, x, following in zip(first, places, nexts, strict=True):
        if x - last < NUMBER_FROM_PERCENT:
            continue
        anchor = "end" if x > 100 - WORDS_FROM_PERCENT else "start"
        is_short = following - x < LABELS_APART_PERCENT
        text = str(attempt) if is_short else _("attempt %(attempt)s") % {"attempt": attempt}
        labels.append(Label(x=_pc(x), text=text, anchor=anchor))
        last = x
    return tuple(labels)


def _step(held: Held, most: int, axis: _Axis) -> Rectangle:
    x = axis.at(held.start)
    width = max(axis.at(held.end) - x, SHORTEST_PERCENT)
    height = max(6, round(LANE_HEIGHT * held.devices / most))
    number = words.count(held.devices)
    return Rectangle(
        x=_pc(x),
        width=_pc(width),
        middle=_pc(x + width / 2),
        y=LANE_HEIGHT - height,
        height=height,
        text=number if width >= NUMBER_FROM_PERCENT and height >= 14 else "",
        title=_(", ").join(
            (words.plural(held.devices, "device", "devices"), _range(held.start, held.end))
        ),
    )


def _grid(axis: _Axis) -> tuple[Label, ...]:
    step = next(
        (each for each in GRID_SECONDS if axis.seconds / each <= MOST_GRID_LINES),
        GRID_SECONDS[-1] * max(1, round(axis.seconds / GRID_SECONDS[-1] / MOST_GRID_LINES)),
    )
    first = words.first_tick(axis.start, step)
    form = "%H:%M:%S" if step < 60 else "%H:%M"
    lines: list[Label] = []
    moment = first
    while moment <= axis.start + timedelta(seconds=axis.seconds) and len(lines) < 60:
        text = f"{moment:{form}}" if step < 86_400 else words.day(moment)
        lines.append(Label(x=_pc(axis.at(moment)), text=text, anchor="middle"))
        moment += timedelta(seconds=step)
    if lines:
        return tuple(lines)
    # Shorter than the finest step: the label at its start has the time.
    return (Label(x=_pc(0), text=f"{words.local(axis.start):%H:%M:%S}", anchor="start"),)


def _range(start: datetime, end: datetime) -> str:
    start, end = words.local(start), words.local(end)
    if start.date() == end.date():
        return f"{start:%H:%M} {words.DASH} {end:%H:%M}"
    return f"{words.clock(start)} {words.DASH} {words.clock(end)}"


def _summary(spells: Sequence[StateSpan], held: Sequence[Held]) -> str:
    last = spells[-1]
    attempts = max(spell.attempt for spell in spells)
    facts = {
        "state": str(job_state(last.state).word),
        "since": words.duration((last.end - last.start).total_seconds()),
        "attempt": attempts,
    }
    tries = _("%(state)s for %(since)s in attempt %(attempt)s")
    parts = [(tries if attempts > 1 else _("%(state)s for %(since)s")) % facts]
    if held:
        parts.append(words.plural(held[-1].devices, "device", "devices"))
    return _("%(sentence)s.") % {"sentence": _(", ").join(parts)}


def _row(spell: StateSpan) -> tuple[str, str, str, str]:
    return (
        str(spell.attempt or words.DASH),
        str(job_state(spell.state).word),
        words.clock(spell.start),
        words.duration((spell.end - spell.start).total_seconds()),
    )
