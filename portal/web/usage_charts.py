"""Charts of the page *Usage*: use by day and tenant, and the budget that is left."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, timedelta
from typing import Any, Final

from django.http import HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.web.components import words
from portal.web.reports import month_of
from portal.web.viewing import PageRequest, page
from scheduling.usage.queries.daily import DailyUse, daily_use
from tenants.errors import NotFoundError

MOST_TENANTS: Final = 7
"""Tenants with a colour of their own; the rest is one bar."""


@require_safe
@page
def figure(asked: PageRequest, chart: str) -> HttpResponse:
    """Return one figure as JSON."""
    _month, first, last = month_of(asked)
    found = daily_use(asked.viewer, since=first, until=last)
    days = [first + timedelta(days=place) for place in range((last - first).days + 1)]
    if chart == "days":
        slots = (
            None if found.hours else daily_use(asked.viewer, since=first, until=last, is_gpu=False)
        )
        built = (
            days_figure(replace(slots, budgets={}), days, unit=_("slot-hours"))
            if slots is not None and slots.hours
            else days_figure(found, days, unit=_("GPU-hours"))
        )
    elif chart == "budget":
        built = budget_figure(found, days, today=asked.now.astimezone(UTC).date())
    else:
        raise NotFoundError(_("This chart does not exist."), field="chart", value=chart)
    return JsonResponse(built, headers={"Cache-Control": "private, no-store"})


def days_figure(found: DailyUse, days: Sequence[date], *, unit: str) -> dict[str, Any]:
    """Build stacked bars of hours by day, and the daily pace of all budgets."""
    totals = {name: sum(hours.values()) for name, hours in found.hours.items()}
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    # By name, so that a tenant mostly has the same colour in both charts.
    groups = [(name, [name]) for name in sorted(ranked[:MOST_TENANTS])]
    if ranked[MOST_TENANTS:]:
        groups.append((_("other tenants"), ranked[MOST_TENANTS:]))
    xs = [day.isoformat() for day in days]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": title,
            "x": xs,
            "y": [
                round(sum(found.hours[name].get(day, 0.0) for name in names), 2) for day in days
            ],
            "colour": f"c{place + 1}",
            "hovertemplate": "%{y:,.1f} h",
        }
        for place, (title, names) in enumerate(groups)
    ]
    budget = sum(hours for name, hours in found.budgets.items() if name in found.hours)
    if budget:
        traces.append(_line(_("budget per day"), xs, [round(budget / len(days), 2)] * len(xs)))
    return {
        "data": traces if groups else [],
        "layout": {
            "xaxis": _axis(days),
            "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
            "barmode": "stack",
        },
        "empty": _("No GPU-hours in this month."),
        "summary": _("%(hours)s %(unit)s in this month; most by %(name)s.")
        % {"hours": words.gpu_hours(sum(totals.values())), "unit": unit, "name": ranked[0]}
        if ranked
        else _("No GPU-hours in this month."),
    }


def budget_figure(found: DailyUse, days: Sequence[date], *, today: date) -> dict[str, Any]:
    """Build the share of each budget that is left at the end of each day, and an even pace."""
    xs = [day.isoformat() for day in days]
    left = {
        name: _left(found.hours.get(name, {}), budget, days, today)
        for name, budget in sorted(found.budgets.items())
    }
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": xs,
            "y": values,
            "colour": f"c{place % 8 + 1}",
            "hovertemplate": "%{y:.0f} %",
        }
        for place, (name, values) in enumerate(left.items())
    ]
    even = [round(100 * (1 - (place + 1) / len(days)), 1) for place in range(len(days))]
    if traces:
        traces.append(_line(_("even pace"), xs, even))
    lowest = min(((values[0], name) for name, values in _newest(left).items()), default=None)
    empty = (
        _("Only leads of a tenant see the burn-down of its budget.")
        if found.has_hidden_budgets
        else _("No tenant has a budget of GPU-hours.")
    )
    return {
        "data": traces,
        "layout": {"xaxis": _axis(days), "yaxis": {"title": {"text": "%"}}},
        "empty": empty,
        "summary": _lowest(*lowest) if lowest else empty,
    }


def _lowest(left: float, name: str) -> str:
    """Describe the budget of which the smallest share is left, in percent."""
    if left < 0:
        return _("%(name)s is over its budget by %(share)s.") % {
            "name": name,
            "share": words.percent(-left / 100),
        }
    return _("Lowest remaining budget: %(name)s with %(left)s.") % {
        "name": name,
        "left": words.percent(left / 100),
    }


def _left(
    hours: Mapping[date, float], budget: float, days: Sequence[date], today: date
) -> list[float | None]:
    used = 0.0
    found: list[float | None] = []
    for day in days:
        used += hours.get(day, 0.0)
        found.append(round(100 * (1 - used / budget), 1) if day <= today else None)
    return found


def _newest(left: dict[str, list[float | None]]) -> dict[str, list[float]]:
    known = {name: [one for one in values if one is not None] for name, values in left.items()}
    return {name: values[-1:] for name, values in known.items() if values}


def _line(name: str, xs: Sequence[str], ys: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(xs),
        "y": list(ys),
        "line": {"dash": "dash"},
        "colour": "text",
    }


def _axis(days: Sequence[date]) -> dict[str, Any]:
    ends = [days[0] - timedelta(days=1), days[-1] + timedelta(days=1)]
    return {"type": "date", "range": [end.isoformat() for end in ends]}
