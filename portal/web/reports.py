"""Reports over a period: device-hours, as CSV too, and the quality of start estimates."""

import re
from collections.abc import Sequence
from datetime import UTC, date, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.addresses import job_url
from portal.api.history import csv_answer
from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.viewing import PageRequest, page
from scheduling.estimates.queries import EstimateAccuracy, calibration
from scheduling.usage.queries.daily import first_day_of_use
from scheduling.usage.queries.usage import GROUPS, Hours, Usage, UsageLine, usage
from tenants.errors import InvalidError

MONTHS: Final = 6
TABS: Final = (
    ("tenant", gettext_lazy("Tenants")),
    ("virtual_cluster", gettext_lazy("Virtual clusters")),
    ("person", gettext_lazy("Users")),
    ("job", gettext_lazy("Jobs")),
    ("day", gettext_lazy("Days")),
)
_MONTH: Final = re.compile(r"2[01][0-9]{2}-(0[1-9]|1[0-2])")
TICKS = (1, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400)
SHORTEST = 1.0
LEAST_TICKS = 3


@require_safe
@page
def usage_page(asked: PageRequest) -> HttpResponse:
    """Show usage of the period, by month and grouped as in the address."""
    found, month = _found(asked)
    is_gpu = bool(found.gpu.held or not found.slot.held)
    unit = gettext("GPU-hours") if is_gpu else gettext("slot-hours")
    most = max((_of(line, is_gpu).held for line in found.lines), default=0.0)
    context = {
        "found": found,
        "month": month,
        "unit": unit,
        "has_guests": any(
            hours.guest or hours.delay for line in found.lines for hours in (line.gpu, line.slot)
        ),
        "has_cpus": bool(found.slot.cpu),
        "has_both": bool(found.gpu.held and found.slot.held),
        "stats": _stats(found, unit, is_gpu),
        "rows": [_row(line, is_gpu, most) for line in found.lines],
        "tabs": [(_address(month, by), text, by == found.by) for by, text in TABS],
        "months": [
            (_address(name, found.by), name, name == month) for name in _months(asked, month)
        ],
        "figures": {
            name: f"{reverse('usage-figure', args=[name])}?{urlencode({'month': month})}"
            for name in ("days", "budget")
        },
        "csv": f"{reverse('usage-csv')}?{urlencode({'month': month, 'by': found.by})}",
        "twin": "/api/v1/usage/?"
        + urlencode({"since": found.since, "until": found.until, "by": found.by}),
    }
    return asked.render("usage/usage.html", context)


@require_safe
@page
def usage_csv(asked: PageRequest) -> HttpResponse:
    found, month = _found(asked)
    return csv_answer(asked.viewer, found, f"usage-{month}-{found.by}.csv")


def month_of(asked: PageRequest) -> tuple[str, date, date]:
    """Return the month of the address with its first and last day; the current one by default.

    Raises:
        InvalidError: it is not a month.
    """
    month = asked.http.GET.get("month", "") or f"{asked.now.astimezone(UTC):%Y-%m}"
    if not _MONTH.fullmatch(month):
        raise InvalidError(
            "This is not a valid month.",
            field="month",
            value=month[:40],
            remedy=gettext("Use the format 2026-03."),
        )
    first = date(int(month[:4]), int(month[5:]), 1)
    return month, first, (first + timedelta(days=32)).replace(day=1) - timedelta(days=1)


def _found(asked: PageRequest) -> tuple[Usage, str]:
    month, first, last = month_of(asked)
    by = asked.http.GET.get("by", "")
    default = "tenant" if asked.viewer.is_cluster_admin else "person"
    chosen = by if by in GROUPS else default
    return usage(asked.viewer, since=first, until=last, by=chosen), month


def _months(asked: PageRequest, shown: str) -> list[str]:
    """Return the newest months, none of which is before the first visible use."""
    first = asked.now.astimezone(UTC).date().replace(day=1)
    oldest = (first_day_of_use(asked.viewer) or first).replace(day=1)
    months = [f"{first:%Y-%m}"]
    while len(months) < MONTHS and first > oldest:
        first = (first - timedelta(days=1)).replace(day=1)
        months.append(f"{first:%Y-%m}")
    return months if shown in months else [*months, shown]


def _address(month: str, by: str) -> str:
    return f"{reverse('usage')}?{urlencode({'month': month, 'by': by})}"


def _of(line: UsageLine, is_gpu: bool) -> Hours:
    return line.gpu if is_gpu else line.slot


def _row(line: UsageLine, is_gpu: bool, most: float) -> dict[str, Any]:
    hours = _of(line, is_gpu)
    scale = 100 / most if most else 0.0
    return {
        "line": line,
        "hours": hours,
        "slot": line.slot,
        "url": job_url(line.job),
        "guaranteed": f"{hours.guaranteed * scale:.2f}%",
        "borrowed": f"{hours.borrowed * scale:.2f}%",
        "lost": f"{min(hours.lost, hours.held) * scale:.2f}%",
    }


def _stats(found: Usage, unit: str, is_gpu: bool) -> tuple[Stat, ...]:
    total = found.gpu if is_gpu else found.slot
    other = found.slot if is_gpu else Hours()
    return (
        Stat(
            label=gettext("Total"),
            value=words.gpu_hours(total.held),
            unit=unit,
            context=gettext("plus %(held)s slot-hours") % {"held": words.gpu_hours(other.held)}
            if other.held
            else "",
        ),
        Stat(
            label=gettext("Guaranteed"),
            value=words.gpu_hours(total.guaranteed),
            unit=unit,
            context=_share(total.guaranteed, total.held),
        ),
        Stat(
            label=gettext("Borrowed"),
            value=words.gpu_hours(total.borrowed),
            unit=unit,
            context=_share(total.borrowed, total.held),
        ),
        Stat(
            label=gettext("Lost to preemption"),
            value=words.gpu_hours(total.lost_preempted),
            unit=unit,
            context=gettext("%(share)s, since the last checkpoint")
            % {"share": _share(total.lost_preempted, total.held)},
        ),
        Stat(
            label=gettext("Lost to failure"),
            value=words.gpu_hours(total.lost_failed),
            unit=unit,
            context=gettext("%(share)s, since the last checkpoint")
            % {"share": _share(total.lost_failed, total.held)},
        ),
    )


def _share(part: float, whole: float) -> str:
    return (
        gettext("%(part)s of the total") % {"part": words.percent(part / whole)}
        if whole
        else gettext("no usage")
    )


@require_safe
@page
def estimates(request: PageRequest) -> HttpResponse:
    """Show each virtual cluster with its share of actual starts in the interval, and a chart."""
    found = calibration(request.viewer, now=request.now)
    context = {
        "rows": found,
        "figure": calibration_figure(found),
        "summary": describe_calibration(found),
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
    return {"data": traces, "layout": layout, "summary": describe_calibration(rows)}


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


def describe_calibration(rows: Sequence[EstimateAccuracy]) -> str:
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
