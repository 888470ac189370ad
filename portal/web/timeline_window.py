"""The window of the timeline: its span and look, read from the address and changed by links."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext

from portal.api.queries import instant_in_query
from portal.i18n import gettext_lazy
from portal.web.components import words
from scheduling.usage.queries.timeline import LONGEST_SPAN, SHORTEST_SPAN

SPANS: Final = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
DEFAULT_SPAN: Final = "6h"
"""Span of an address without one; if all runs are younger, the least span that shows them."""

AHEAD: Final = 0.08
"""Share of a span including the present that lies in the future."""

COLOURS: Final = (
    ("tenant", gettext_lazy("Tenant")),
    ("state", gettext_lazy("State")),
    ("vc", gettext_lazy("Virtual cluster")),
)
MOST_OPEN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window in the address.

    Attributes:
        span: the preset that follows the present; empty for a fixed window.
        opened: nodes with visible devices.
        wanted: part of a node's name.
    """

    since: datetime
    until: datetime
    span: str
    opened: frozenset[int]
    wanted: str
    colour: str
    view: str


def read_window(query: QueryDict, now: datetime, *, first: datetime | None = None) -> Window:
    """Read the window of an address; by default 6 hours, or less in a young cluster.

    Args:
        query: query of the address.
        now: the current time.
        first: start of the oldest run; None if irrelevant, or if there are no runs.

    Raises:
        InvalidError: an invalid time, or a span too short or too long.
    """
    since, until = instant_in_query(query, "since"), instant_in_query(query, "until")
    span = query.get("span", "")
    if span not in SPANS:
        span = "" if since else _least_span(first, now)
    if span:
        length = SPANS[span]
        until = now + AHEAD * length
        since = until - length
    opened = [int(word) for word in query.get("open", "").split(",") if _is_number(word)]
    colour = query.get("colour", "")
    return Window(
        since=since or now - SPANS[DEFAULT_SPAN],
        until=until or now,
        span=span,
        opened=frozenset(opened[:MOST_OPEN]),
        wanted=query.get("q", "").strip()[:63],
        colour=colour if colour in {key for key, _ in COLOURS} else "tenant",
        view="table" if query.get("view") == "table" else "",
    )


def _least_span(first: datetime | None, now: datetime) -> str:
    """Return the shortest preset that covers all since ``first``, up to the default span."""
    if first is None:
        return DEFAULT_SPAN
    long_enough = (name for name in SPANS if now - first <= (1 - AHEAD) * SPANS[name])
    found = next(long_enough, DEFAULT_SPAN)
    return min(found, DEFAULT_SPAN, key=SPANS.__getitem__)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 19


def ways(window: Window, now: datetime) -> dict[str, Any]:
    """Return the addresses of other windows, and of other drawings of this window."""
    return {
        "spans": [
            (
                words.duration(length.total_seconds()),
                address_of(window, span=name),
                name == window.span,
            )
            for name, length in SPANS.items()
        ],
        "moves": _moves(window, now),
        "colours": [
            (key, text, address_of(window, colour=key), key == window.colour)
            for key, text in COLOURS
        ],
        "views": [
            (key, text, address_of(window, view=key), key == window.view)
            for key, text in (("", gettext("Drawing")), ("table", gettext("Table")))
        ],
    }


def _moves(window: Window, now: datetime) -> list[tuple[str, str, str, str]]:
    """Return earlier, later, in and out: key, icon, label and address.

    A zoom is centred on the present, or on the middle if the present is not shown: most people
    look at current runs, which a zoom into the middle would hide.
    """
    length = window.until - window.since
    fixed = now if window.since <= now <= window.until else window.since + length / 2

    def zoomed(wanted: timedelta) -> str:
        return _at(window, fixed - (fixed - window.since) * (wanted / length), wanted)

    return [
        ("ArrowLeft", "left", gettext("Earlier"), _at(window, window.since - length / 2, length)),
        ("ArrowRight", "right", gettext("Later"), _at(window, window.since + length / 2, length)),
        ("+", "plus", gettext("Zoom in"), zoomed(max(length / 2, SHORTEST_SPAN))),
        ("-", "minus", gettext("Zoom out"), zoomed(min(length * 2, LONGEST_SPAN))),
    ]


def _at(window: Window, since: datetime, length: timedelta) -> str:
    return address_of(window, since=since, until=since + length)


def address_of(window: Window, **changes: Any) -> str:
    query: dict[str, str] = {}
    span = changes.get("span", "" if "since" in changes else window.span)
    if span:
        query["span"] = span
    else:
        query["since"] = _stamp(changes.get("since", window.since))
        query["until"] = _stamp(changes.get("until", window.until))
    opened = changes.get("opened", window.opened)
    colour, view = changes.get("colour", window.colour), changes.get("view", window.view)
    if opened:
        query["open"] = ",".join(map(str, sorted(opened)))
    if window.wanted:
        query["q"] = window.wanted
    if colour != "tenant":
        query["colour"] = colour
    if view:
        query["view"] = view
    return f"{reverse('timeline')}?{urlencode(query, safe=',:')}"


def span_query(window: Window) -> str:
    return urlencode({"since": _stamp(window.since), "until": _stamp(window.until)}, safe=":")


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
