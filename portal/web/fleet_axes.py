"""Axes, lines and sizes that the charts of the page *Fleet history* share."""

from collections.abc import Sequence
from typing import Any, Final

from portal.web.components import words
from scheduling.usage.queries.fleet import FleetHistory

ROW_PX: Final = 18
LEAST_ROW_PX: Final = 3
MOST_PX: Final = 900


def span_in_words(seconds: int) -> str:
    """Format the length of an interval."""
    return words.duration(seconds)


def line_of(
    name: str,
    times: Sequence[str],
    values: Sequence[float | None],
    colour: str,
    *,
    dash: str = "solid",
    **more: Any,
) -> dict[str, Any]:
    """Return the trace of a line."""
    return {
        "x": list(times),
        "y": list(values),
        "name": name,
        "type": "scatter",
        "mode": "lines",
        "line": {"dash": dash},
        "colour": colour,
        **more,
    }


def time_axis(history: FleetHistory, anchor: str = "y") -> dict[str, Any]:
    """Return a layout with the whole range as its x axis."""
    ends = [words.on_chart(history.since), words.on_chart(history.until)]
    return {"xaxis": {"range": ends, "type": "date", "anchor": anchor}}


def category_axis(rows: int) -> dict[str, Any]:
    """Return an axis with a row for each name, the first on top."""
    return {
        "type": "category",
        "autorange": "reversed",
        "showgrid": False,
        "nticks": min(max(rows, 1), int(MOST_PX / ROW_PX)),
        "title": {"text": ""},
    }


def height_of(rows: int) -> int:
    """Return the height of a chart with that many rows, in pixels."""
    row = ROW_PX if rows * ROW_PX <= MOST_PX else max(LEAST_ROW_PX, MOST_PX // rows)
    return max(140, 60 + rows * row)


def zone_seconds(history: FleetHistory) -> float:
    """Return the offset of the page's zone from UTC, for the range of a file."""
    offset = words.local(history.until).utcoffset()
    return offset.total_seconds() if offset else 0.0
