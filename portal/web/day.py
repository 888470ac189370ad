"""The chart of the cluster's last day."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy, word
from portal.web.components import words
from workers.day import DayPoint

Take = Callable[[DayPoint], float | None]
NOTHING: Final = gettext_lazy(
    "No data yet. Nodes report utilisation every minute; jobs that use tessera.train report "
    "efficiency."
)
FEW: Final = 6
LINES: Final[tuple[tuple[str, str, Take], ...]] = (
    ("in use", "text-3", lambda point: point.in_use),
    ("utilisation", "c1", lambda point: point.utilisation),
    ("efficiency", "text", lambda point: point.efficiency),
)


def day_figure(points: Sequence[DayPoint]) -> dict[str, Any]:
    """Build the figure in percent with its sentence; without traces if nothing is known.

    Unknown time at the start is omitted, so that a young cluster fills its chart.
    """
    points = _since_known(points)
    # A line needs two points; a marker shows a single one.
    mode = "lines" if len(points) > FEW else "lines+markers"
    traces = []
    for name, colour, take in LINES:
        shares = [take(point) for point in points]
        if any(share is not None for share in shares):
            traces.append(
                {
                    "x": [words.on_chart(point.at) for point in points],
                    "y": [None if share is None else round(100 * share, 1) for share in shares],
                    "name": word(name),
                    "type": "scatter",
                    "mode": mode,
                    "connectgaps": False,
                    "colour": colour,
                    **({"line": {"dash": "dot"}} if name == "in use" else {}),
                }
            )
    ticks = (0, 25, 50, 75, 100)
    axis = {
        "range": [0, 104],
        "tickvals": ticks,
        "ticktext": [words.percent(tick / 100) for tick in ticks],
    }
    return {"data": traces, "layout": {"yaxis": axis}, "says": day_says(points)}


def _since_known(points: Sequence[DayPoint]) -> Sequence[DayPoint]:
    """Return the points from the first known one, and at least the last hour."""
    first = next(
        (
            place
            for place, point in enumerate(points)
            if point.in_use or point.utilisation is not None or point.efficiency is not None
        ),
        len(points),
    )
    return points[max(0, min(first, len(points) - FEW)) :]


def day_says(points: Sequence[DayPoint]) -> str:
    """Describe the chart in a sentence."""
    parts = []
    for name, _colour, take in LINES:
        known = [share for share in map(take, points) if share is not None]
        if known:
            mean = sum(known) / len(known)
            parts.append(
                _("%(name)s %(known)s now, %(mean)s on average")
                % {
                    "name": word(name),
                    "known": words.percent(known[-1]),
                    "mean": words.percent(mean),
                }
            )
    if not parts:
        return str(NOTHING)
    return _("%(sentence)s.") % {"sentence": _("; ").join(parts).capitalize()}
