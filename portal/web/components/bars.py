"""Geometry of small drawings: virtual cluster bars, estimates, sparklines, round ticker."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from portal.i18n import word
from scheduling.rounds.queries import RoundTick

GAP_PERCENT: Final = 0.25
EST_WIDTH: Final = 132.0
EST_LOW_SECONDS: Final = 60.0
EST_HIGH_SECONDS: Final = 12 * 3600.0
TICKER_ROUNDS: Final = 12
TICKER_HEIGHT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VcBarUse:
    """Devices of one virtual cluster.

    Attributes:
        name: name of the virtual cluster.
        url: address of its page, or empty.
        category: 1 to 8, the colour of its tenant.
        guarantee: guaranteed devices.
        used: devices of the guarantee that its own jobs use.
        lent: devices of the guarantee that others use.
        unhealthy: devices of the guarantee that are out of order.
        cordoned: healthy devices of the guarantee on nodes that an admin cordoned or drains.
        borrowed: beyond the guarantee.
        queued: requested by waiting jobs.
        policy: name of its policy.
    """

    name: str
    guarantee: int
    used: int
    lent: int = 0
    unhealthy: int = 0
    cordoned: int = 0
    borrowed: int = 0
    queued: int = 0
    category: int = 1
    url: str = ""
    policy: str = ""

    @property
    def idle(self) -> int:
        """Return the unused part of the guarantee."""
        return max(0, self.guarantee - self.used - self.lent - self.away)

    @property
    def away(self) -> int:
        """Return the devices of the guarantee that cannot be used."""
        return self.unhealthy + self.cordoned

    @property
    def healthy(self) -> int:
        """Return the healthy devices of the guarantee."""
        return self.guarantee - self.unhealthy

    @property
    def extent(self) -> int:
        """Length of the bar in devices."""
        return (
            max(self.guarantee, self.used + self.lent + self.away + self.idle)
            + self.borrowed
            + self.queued
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One stretch of a bar; ``x``, ``width`` and ``middle`` in percent of the drawing."""

    kind: str
    devices: int
    x: str
    width: str
    middle: str
    show_count: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VcBar:
    """A drawn bar: the numbers, the segments, and the position of the guarantee mark."""

    use: VcBarUse
    segments: tuple[Segment, ...]
    track: str
    mark: str
    summary: str


def vc_bars(uses: Iterable[VcBarUse]) -> tuple[VcBar, ...]:
    """Draw the bars of one card, all on the same scale."""
    uses = tuple(uses)
    scale = max((use.extent for use in uses), default=0)
    return tuple(_vc_bar(use, max(scale, 1)) for use in uses)


def _vc_bar(use: VcBarUse, scale: int) -> VcBar:
    parts = (
        ("used", use.used),
        ("lent", use.lent),
        ("unhealthy", use.unhealthy),
        ("cordoned", use.cordoned),
        ("idle", use.idle),
        ("borrowed", use.borrowed),
        ("queued", use.queued),
    )
    segments: list[Segment] = []
    at = 0
    for kind, devices in parts:
        if devices:
            segments.append(_segment(kind, devices, at, scale))
        at += devices
    return VcBar(
        use=use,
        segments=tuple(segments),
        track=_percent(use.guarantee, scale),
        mark=_percent(use.guarantee, scale),
        summary=_summary(use),
    )


def _segment(kind: str, devices: int, at: int, scale: int) -> Segment:
    share = 100 * devices / scale
    return Segment(
        kind=kind,
        devices=devices,
        x=_percent(at, scale),
        width=f"{max(share - GAP_PERCENT, 0.1):.2f}%",
        middle=_percent(at + devices / 2, scale),
        show_count=kind not in {"unhealthy", "cordoned"} and share >= 2.2 * len(str(devices)),
    )


def _summary(use: VcBarUse) -> str:
    named = (
        ("lent", use.lent),
        ("idle", use.idle),
        ("unhealthy", use.unhealthy),
        ("cordoned", use.cordoned),
        ("borrowed", use.borrowed),
        ("queued", use.queued),
    )
    used = _("%(name)s: %(used)s of %(guarantee)s guaranteed devices used") % {
        "name": use.name,
        "used": use.used,
        "guarantee": use.guarantee,
    }
    extra = [
        _("%(count)s %(state)s") % {"count": number, "state": word(state)}
        for state, number in named
        if number
    ]
    return _("%(sentence)s.") % {"sentence": _(", ").join((used, *extra))}


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateBar:
    """A range on the log axis from 1 min to 12 h; lengths in user units of a 132 wide box."""

    x: str
    width: str
    tick: str


def estimate_bar(p10: float, p50: float, p90: float) -> EstimateBar:
    """Return the positions of p10, p50 and p90 (seconds from now) on the axis of all rows."""
    low, middle, high = (_on_axis(value) for value in (p10, p50, p90))
    return EstimateBar(
        x=f"{low:.1f}", width=f"{max(high - low, 3):.1f}", tick=f"{min(middle, EST_WIDTH - 2):.1f}"
    )


def _on_axis(seconds: float) -> float:
    inside = min(max(seconds, EST_LOW_SECONDS), EST_HIGH_SECONDS)
    share = math.log(inside / EST_LOW_SECONDS) / math.log(EST_HIGH_SECONDS / EST_LOW_SECONDS)
    return share * EST_WIDTH


def sparkline(
    values: Sequence[float | None], *, width: int = 64, height: int = 26
) -> tuple[str, ...]:
    """Return the point lists of the polylines through ``values``; a ``None`` is a gap."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ()
    low, high = min(known), max(known)
    reach = (high - low) or 1.0
    step = width / (len(values) - 1)
    lines: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            lines.append([])
            continue
        y = 1 + (height - 2) * (1 - (value - low) / reach) if high > low else height / 2
        lines[-1].append(f"{index * step:.1f},{y:.1f}")
    return tuple(" ".join(line) for line in lines if len(line) > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TickerBar:
    """One bar of the round ticker, in pixels; its number and length are for the page's script."""

    number: int
    seconds: float
    x: int
    y: int
    height: int
    newest: bool


def ticker_bars(rounds: Sequence[RoundTick]) -> tuple[TickerBar, ...]:
    """Build bars of the last twelve rounds, the longest at full height, the newest at right."""
    last = rounds[-TICKER_ROUNDS:]
    longest = max((each.seconds for each in last), default=0.0) or 1.0
    heights = [max(2, round((TICKER_HEIGHT - 2) * each.seconds / longest)) for each in last]
    first = 5 * (TICKER_ROUNDS - len(last))
    return tuple(
        TickerBar(
            number=last[index].number,
            seconds=last[index].seconds,
            x=first + 5 * index,
            y=TICKER_HEIGHT - height,
            height=height,
            newest=index == len(last) - 1,
        )
        for index, height in enumerate(heights)
    )
