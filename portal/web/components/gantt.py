"""The timeline of jobs by device: runs are bars, short ones are folded, all in percent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from django.utils import timezone
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext as _

from portal.web.components import words
from portal.web.components.states import job_state

MOST_BARS: Final = 600
TITLES_KEPT: Final = 4096
"""Cached titles of runs, which are almost the same at each rendering."""

SHORTEST_PERCENT: Final = 0.15
"""Narrower runs are merged with their neighbours; about a pixel and a half."""

FOLD_GAP_PERCENT: Final = 0.5
TEXT_PERCENT: Final = 7.0
TEXT_HEIGHT: Final = 13.0
NODE_HEIGHT: Final = 26
ROOMY_BELOW: Final = 12
"""Below this number of nodes, rows of ``ROOMY_LANE`` for each device show readable names."""
ROOMY_LANE: Final = 7
DENSE_HEIGHT: Final = 14
DENSE_ABOVE: Final = 60
DEVICE_HEIGHT: Final = 18
GRID_SECONDS: Final = (5, 15, 60, 300, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400, 432_000)
MOST_GRID_LINES: Final = 8
TONES: Final = {
    "succeeded": "done",
    "stopped": "done",
    "resized": "done",
    "moved": "done",
    "reverted": "done",
    "drained": "done",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttRun:
    """A job on devices of one node, as far as the reader may see it.

    Attributes:
        lanes: positions of its devices on the node, from 0.
        end: None while it runs.
        ahead: latest end of a running job; None if unknown.
        text: number and name, empty for a job of another tenant.
        whose: owner and virtual cluster, or the placeholder for another tenant.
        tenant, vc: categories 1 to 8; None if the reader may not see it.
    """

    lanes: tuple[int, ...]
    start: datetime
    end: datetime | None
    ahead: datetime | None = None
    text: str = ""
    whose: str = ""
    state: str = "running"
    tenant: int | None = None
    vc: int | None = None
    borrowed: bool = False
    reserved: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttNode:
    """A node with its runs, oldest first; ``toggle`` opens or closes its devices."""

    name: str
    url: str
    icon: str
    tone: str
    summary: str
    devices: tuple[int, ...]
    runs: Sequence[GanttRun]
    is_open: bool = False
    toggle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A rectangle: ``x`` and ``width`` in percent, ``y`` and ``height`` in pixels."""

    x: float
    width: float
    y: float
    height: float
    kind: str
    title: str
    run: GanttRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttRow:
    """A node as drawn; ``lanes`` has its devices when it is open."""

    node: GanttNode
    height: int
    lanes: tuple[tuple[int, int], ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTick:
    """A line of the time axis."""

    x: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """Input of the template.

    Attributes:
        now: position of the present; empty if outside.
        unread: width of the unknown part at the left, in percent; empty if none.
        folded: number of runs too short to be drawn one by one.
    """

    rows: tuple[GanttRow, ...]
    ticks: tuple[AxisTick, ...]
    now: str
    unread: str
    since: datetime
    until: datetime
    folded: int


@dataclass(frozen=True, slots=True)
class _Axis:
    since: datetime
    until: datetime
    now: datetime
    language: str | None = None
    zone: tzinfo = UTC

    def at(self, moment: datetime) -> float:
        if moment <= self.since:
            return 0.0
        if moment >= self.until:
            return 100.0
        return 100 * ((moment - self.since) / (self.until - self.since))

    def span(self, run: GanttRun) -> tuple[float, float]:
        return self.at(run.start), self.at(run.end or self.now)


_Spans = list[tuple[GanttRun, float, float]]


def gantt(
    nodes: Sequence[GanttNode],
    *,
    since: datetime,
    until: datetime,
    now: datetime,
    complete_since: datetime | None = None,
    most: int = MOST_BARS,
) -> Gantt:
    """Draw ``nodes`` between ``since`` and ``until``.

    Args:
        nodes: nodes in order of display.
        since: the left edge.
        until: the right edge.
        now: end of the bars of running jobs.
        complete_since: earlier data is incomplete.
        most: maximum number of bars; the longest are drawn, the others folded.
    """
    axis = _Axis(since, until, now, get_language(), timezone.get_current_timezone())
    spans: list[_Spans] = [[(run, *axis.span(run)) for run in node.runs] for node in nodes]
    least = _least_width(spans, most)
    closed = DENSE_HEIGHT if len(nodes) > DENSE_ABOVE else NODE_HEIGHT
    lane = ROOMY_LANE if len(nodes) < ROOMY_BELOW else 0
    drawn = [
        _row(node, own, axis, least, closed=max(closed, lane * len(node.devices)))
        for node, own in zip(nodes, spans, strict=True)
    ]
    return Gantt(
        rows=tuple(row for row, _ in drawn),
        ticks=ticks(since, until),
        now=_pc(axis.at(now)) if since < now < until else "",
        unread=_pc(axis.at(complete_since)) if complete_since else "",
        since=since,
        until=until,
        folded=sum(folded for _, folded in drawn),
    )


def ticks(since: datetime, until: datetime) -> tuple[AxisTick, ...]:
    """Return at most 8 round times between the edges."""
    seconds = (until - since).total_seconds()
    step = next((s for s in GRID_SECONDS if seconds / s <= MOST_GRID_LINES), GRID_SECONDS[-1])
    form = "%H:%M:%S" if step < 60 else "%H:%M"
    first = words.first_tick(since, step)
    count = max(0, int((until - first).total_seconds()) // step + 1)
    moments = [words.local(first + timedelta(seconds=step * place)) for place in range(count)]
    axis = _Axis(since, until, until)
    # A label at either end of the axis would be cut off.
    return tuple(
        AxisTick(
            x=_pc(axis.at(moment)),
            text=f"{moment:{form}}" if step < 43_200 else words.clock(moment),
        )
        for moment in moments
        if 2 < axis.at(moment) < 98
    )


def used_share(
    nodes: Iterable[GanttNode], *, since: datetime, until: datetime, now: datetime
) -> float | None:
    """Return the used share of the devices' time up to now; None if no time has passed."""
    end = min(until, now)
    if end <= since:
        return None
    used, there = timedelta(), 0
    for node in nodes:
        there += len(node.devices)
        for run in node.runs:
            overlap = min(run.end or now, end) - max(run.start, since)
            if overlap > timedelta() and not run.reserved:
                used += overlap * len(run.lanes)
    return min(used / (there * (end - since)), 1.0) if there else None


def tone_of(state: str) -> str:
    """Return the tone of a run: that of its job while it runs, otherwise that of its end."""
    return TONES.get(state) or job_state(state).tone


def _least_width(spans: Iterable[_Spans], most: int) -> float:
    """Return the minimum width of runs that are drawn one by one, which limits their number."""
    widths = sorted((end - start for own in spans for _, start, end in own), reverse=True)
    return max(SHORTEST_PERCENT, widths[most] if len(widths) > most else 0.0)


def _row(
    node: GanttNode, spans: _Spans, axis: _Axis, least: float, *, closed: int
) -> tuple[GanttRow, int]:
    count = max(len(node.devices), 1)
    height = DEVICE_HEIGHT * count if node.is_open else closed
    lane = height / count
    bars: list[Bar] = []
    short: list[tuple[float, float]] = []
    for run, left, right in spans:
        # Running jobs are never folded: readers look for them.
        if right - left <= least and run.end is not None:
            short.append((left, right))
        else:
            bars += _bars(run, left, right, axis, lane)
    bars += _folded(short, height)
    lanes = tuple((index, round((place + 0.5) * lane)) for place, index in enumerate(node.devices))
    row = GanttRow(node=node, height=height, lanes=lanes if node.is_open else (), bars=tuple(bars))
    return row, len(short)


def _bars(run: GanttRun, left: float, right: float, axis: _Axis, lane: float) -> list[Bar]:
    width = max(right - left, SHORTEST_PERCENT)
    seconds = ((run.end or axis.now) - run.start).total_seconds()
    title = f"{_head(run, axis.language, axis.zone)}{words.duration_in(axis.language, seconds)}"
    found = []
    for first, last in _stretches(run.lanes):
        place = {"y": first * lane + 0.5, "height": (last - first + 1) * lane - 1}
        kind = "reserved" if run.reserved else "run"
        found.append(Bar(x=left, width=width, kind=kind, title=title, run=run, **place))
        if run.end is None and run.ahead is not None:
            ahead = axis.at(run.ahead) - right
            if ahead > SHORTEST_PERCENT:
                found.append(
                    Bar(x=right, width=ahead, kind="ahead", title=title, run=run, **place)
                )
    return found


def _folded(spans: Iterable[tuple[float, float]], height: int) -> list[Bar]:
    """Fold adjacent short runs into one bar with their number."""
    merged: list[tuple[float, float, int]] = []
    for left, right in sorted(spans):
        if merged and left - merged[-1][1] <= FOLD_GAP_PERCENT:
            before = merged[-1]
            merged[-1] = (before[0], max(before[1], right), before[2] + 1)
        else:
            merged.append((left, right, 1))
    # Along the lower edge: over the whole row they would look like lines through longer runs.
    mark = max(2.0, min(4.0, height / 4))
    return [
        Bar(
            x=left,
            width=max(right - left, SHORTEST_PERCENT),
            y=height - mark,
            height=mark,
            kind="many",
            title=words.plural(count, "short run", "short runs"),
        )
        for left, right, count in merged
    ]


def _stretches(lanes: Sequence[int]) -> list[tuple[int, int]]:
    """Return first and last of each contiguous range of lanes."""
    found: list[tuple[int, int]] = []
    for lane in sorted(lanes):
        if found and lane == found[-1][1] + 1:
            found[-1] = (found[-1][0], lane)
        else:
            found.append((lane, lane))
    return found


@lru_cache(maxsize=TITLES_KEPT)
def _head(run: GanttRun, _language: str | None, _zone: tzinfo) -> str:
    """Return the title of a run without its duration, which alone changes while it runs."""
    parts = [
        run.text or gettext("a job"),
        run.whose,
        gettext("reserved") if run.reserved else job_state(run.state).word.lower(),
        gettext("borrowed") if run.borrowed and not run.reserved else "",
        # Up to 1,000 titles per page: locale-aware formats would take most of its time.
        gettext("1 device")
        if len(run.lanes) == 1
        else gettext("%(count)s devices") % {"count": len(run.lanes)},
        f"{words.clock(run.start)} {words.DASH} {words.clock(run.end) if run.end else _('now')}",
    ]
    between = _(", ")
    return "".join(f"{part}{between}" for part in parts if part)


def legend(runs: Iterable[GanttRun], names: Mapping[int, str]) -> tuple[tuple[int, str], ...]:
    """Return the drawn categories with their names."""
    seen = {run.tenant for run in runs if run.tenant is not None}
    return tuple((category, names[category]) for category in sorted(seen & names.keys()))


def _pc(value: float) -> str:
    return f"{value:.2f}%"
