"""Line charts of the page *Fleet history*: waits, shares, idle devices."""

from typing import Any, Final

from django.utils.translation import gettext as _

from portal.web.components import words
from portal.web.fleet_axes import line_of, time_axis, zone_seconds
from scheduling.usage.queries.fleet import (
    WAIT_LEVELS,
    FleetHistory,
    free_points,
    share_points,
    wait_points,
)

MOST_SIZES: Final = 4


def waits_figure(history: FleetHistory) -> dict[str, Any]:
    """Build p50, p90 and p99 of waits in minutes, above the number of waiting jobs."""
    points = wait_points(history)
    times = [words.on_chart(one.at) for one in points]
    looks = (("text", "solid"), ("c1", "solid"), ("text-3", "dot"))
    traces = [
        line_of(
            f"p{level * 100:g}",
            times,
            [_minutes(one.quantiles[place]) for one in points],
            colour,
            dash=dash,
            connectgaps=True,
            hovertemplate="%{y:,.1f} min",
        )
        for place, (level, (colour, dash)) in enumerate(zip(WAIT_LEVELS, looks, strict=True))
    ]
    traces.append(
        line_of(
            _("waiting jobs"),
            times,
            [round(one.queued, 1) for one in points],
            "c2",
            yaxis="y2",
            fill="tozeroy",
            line={"shape": "hv"},
        )
    )
    started = sum(one.started for one in points)
    return {
        "data": traces if points else [],
        "layout": {
            **time_axis(history, anchor="y2"),
            "yaxis": {"title": {"text": _("wait, minutes")}, "domain": [0.42, 1]},
            "yaxis2": {"title": {"text": _("waiting jobs")}, "domain": [0, 0.32]},
            "height": 340,
        },
        "log": True,
        "zone_seconds": zone_seconds(history),
        "summary": _("%(starts)s; highest p90 %(wait)s; up to %(queued)s waiting.")
        % {
            "starts": words.plural(started, "start", "starts"),
            "wait": words.duration(max((one.quantiles[1] or 0.0 for one in points), default=0.0)),
            "queued": words.plural(
                round(max((one.queued for one in points), default=0.0)), "job", "jobs"
            ),
        },
    }


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 60, 2)


def shares_figure(history: FleetHistory) -> dict[str, Any]:
    """Build use within and beyond the guarantee, and the guarantee itself."""
    points = share_points(history)
    times = [words.on_chart(one.at) for one in points]
    traces = [
        line_of(
            name,
            times,
            [round(value, 2) for value in values],
            colour,
            line={"shape": "hv", "dash": dash},
            **({"stackgroup": "use"} if is_stacked else {}),
        )
        for name, values, colour, dash, is_stacked in (
            (_("used within the guarantee"), [one.used for one in points], "c1", "solid", True),
            (_("borrowed"), [one.borrowed for one in points], "c2", "solid", True),
            (_("guarantee"), [one.guarantee for one in points], "text", "solid", False),
            (_("lent to others"), [one.lent for one in points], "text-3", "dot", False),
        )
    ]
    guarantee = sum(one.guarantee for one in points)
    used = sum(one.used for one in points)
    return {
        "data": traces if points else [],
        "layout": {
            **time_axis(history),
            "yaxis": {"title": {"text": _("devices")}, "rangemode": "tozero"},
        },
        "zone_seconds": zone_seconds(history),
        "summary": _(
            "%(used)s of the guarantee was used; %(borrowed)s device-hours were borrowed."
        )
        % {
            "used": words.percent(used / guarantee) if guarantee else "–",
            "borrowed": words.gpu_hours(
                sum(one.borrowed for one in points) * history.span_seconds / 3600
            ),
        },
    }


def free_figure(history: FleetHistory) -> dict[str, Any]:
    """Build idle devices, and those that gangs of a size cannot use."""
    points = free_points(history)
    times = [words.on_chart(one.at) for one in points]
    sizes = sorted({size for one in points for size in one.stranded if size > 1})[-MOST_SIZES:]
    traces = [
        line_of(
            _("idle"),
            times,
            [None if one.idle is None else round(one.idle, 1) for one in points],
            "text-3",
            dash="dot",
        )
    ]
    traces += [
        line_of(
            _("not usable by %(devices)s") % {"devices": words.plural(size, "device", "devices")},
            times,
            [
                None if one.idle is None else round(one.stranded.get(size, 0.0), 1)
                for one in points
            ],
            f"c{place + 1}",
        )
        for place, size in enumerate(sizes)
    ]
    known = [one for one in points if one.idle is not None]
    return {
        "data": traces if known else [],
        "layout": {
            **time_axis(history),
            "yaxis": {"title": {"text": _("devices")}, "rangemode": "tozero"},
        },
        "zone_seconds": zone_seconds(history),
        "summary": _("%(idle)s idle on average.")
        % {
            "idle": words.plural(
                round(sum(one.idle or 0.0 for one in known) / len(known)), "device", "devices"
            )
        }
        if known
        else _("No samples of idle devices in this range."),
    }
