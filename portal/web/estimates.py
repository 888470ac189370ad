"""Page of the quality of start estimates."""

from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.web.components import words
from portal.web.viewing import PageRequest, page
from scheduling.estimates.queries import EstimateAccuracy, calibration

TICKS = (1, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400)
SHORTEST = 1.0
LEAST_TICKS = 3


@require_safe
@page
def estimates(request: PageRequest) -> HttpResponse:
    """Show each virtual cluster with its share of actual starts in the interval, and a chart."""
    found = calibration(request.viewer, now=request.now)
    context = {
        "rows": found,
        "figure": calibration_figure(found),
        "says": calibration_says(found),
    }
    return request.render("estimates/estimates.html", context)


def calibration_figure(rows: Sequence[EstimateAccuracy]) -> dict[str, Any]:
    """Build the chart of actual against median estimate, interval as a bar; both axes log."""
    traces = [_starts(row, place) for place, row in enumerate(rows) if row.points]
    ticks = _ticks(rows)
    if traces:
        traces.append(_as_estimated(ticks[-1]))
    axis = {
        "type": "log",
        "tickvals": list(ticks),
        "ticktext": [words.duration(tick) for tick in ticks],
    }
    layout = {
        "margin": {"t": 32, "b": 48},
        "legend": {"y": 1.02, "yanchor": "bottom"},
        "xaxis": {**axis, "title": {"text": gettext("estimated wait")}},
        "yaxis": {**axis, "title": {"text": gettext("actual wait")}},
    }
    return {"data": traces, "layout": layout, "says": calibration_says(rows)}


def _starts(row: EstimateAccuracy, place: int) -> dict[str, Any]:
    return {
        "x": [_shown(p50) for _, _, p50, _, _ in row.points],
        "y": [_shown(wait) for *_, wait in row.points],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_shown(p90) - _shown(p50) for _, _, p50, p90, _ in row.points],
            "arrayminus": [_shown(p50) - _shown(p10) for _, p10, p50, _, _ in row.points],
            "thickness": 1,
            "width": 0,
        },
        "name": row.virtual_cluster,
        "type": "scatter",
        "mode": "markers",
        "colour": f"c{place % 8 + 1}",
    }


def _ticks(rows: Sequence[EstimateAccuracy]) -> tuple[int, ...]:
    """Return the ticks of the axes, up to the first beyond the drawn data."""
    longest = max((max(p90, wait) for row in rows for *_, p90, wait in row.points), default=0)
    most = next((place for place, tick in enumerate(TICKS) if tick >= longest), len(TICKS))
    return TICKS[: max(most + 1, LEAST_TICKS)]


def _as_estimated(longest: float) -> dict[str, Any]:
    ends = [SHORTEST, float(longest)]
    return {
        "x": ends,
        "y": ends,
        "name": gettext("estimate = actual"),
        "type": "scatter",
        "mode": "lines",
        "line": {"dash": "dot"},
        "showlegend": False,
        "colour": "text-3",
    }


def calibration_says(rows: Sequence[EstimateAccuracy]) -> str:
    """Describe the chart in a sentence."""
    number = sum(row.estimates for row in rows)
    if not number:
        return gettext("No start estimates to compare yet.")
    inside = sum(row.inside * row.estimates for row in rows) / number
    return _("%(inside)s of %(starts)s were inside the predicted range; the target is 80 %%.") % {
        "inside": words.percent(inside),
        "starts": words.plural(number, "start", "starts"),
    }


def _shown(seconds: float) -> float:
    return round(max(seconds, SHORTEST), 1)
