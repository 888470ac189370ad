"""Page *Fragmentation*: idle devices that no gang of a size can use, now and in the next hours."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.web.cluster_drawing import tenants_in_order
from portal.web.components import words
from portal.web.moves import moves_rows
from portal.web.viewing import PageRequest, page
from scheduling.estimates.queries import (
    ChainFragmentationView,
    FragmentationView,
    fragmentation_view,
)
from tenants.roles import Permission

Bands = Sequence[Sequence[float]]
MOST_LINES = 6
HOUR = 3600.0


@require_safe
@page
def fragmentation(asked: PageRequest) -> HttpResponse:
    """Show the forecast of stranded devices of each chain."""
    found = fragmentation_view(asked.viewer)
    can_move = asked.viewer.can(Permission.MANAGE_NODES)
    context = {
        "can_move": can_move,
        "proposals": moves_rows(asked, tenants_in_order(asked.viewer)) if can_move else (),
        "found": found,
        "hours": round(found.offsets[-1] / HOUR) if found.offsets else 0,
        "chains": [_chain(chain, found) for chain in found.chains],
        "twin": "/api/v1/fragmentation/",
    }
    return asked.render("fragmentation/fragmentation.html", context)


def _chain(chain: ChainFragmentationView, found: FragmentationView) -> dict[str, Any]:
    columns = [place for place, at in enumerate(found.offsets) if at % (2 * HOUR) == 0]
    rows = [(words.plural(size, "device", "devices"), "", bands) for size, bands in chain.by_size]
    rows += [
        (level, words.plural(devices, "device", "devices"), bands)
        for level, devices, bands in chain.by_level[1:]
    ]
    return {
        "chain": chain,
        "figure": chain_figure(chain, found),
        "summary": describe(chain, found),
        "times": [_time(found.offsets[place]) for place in columns],
        "idle": [_range(chain.idle[place]) for place in columns],
        "rows": [
            {
                "name": name,
                "remark": remark,
                "cells": [_range(bands[place]) for place in columns],
            }
            for name, remark, bands in rows
        ],
    }


def chain_figure(chain: ChainFragmentationView, found: FragmentationView) -> dict[str, Any]:
    """Build the chart of median stranded devices over time, one line for each gang size."""
    if found.made_at is None:
        return {"data": [], "layout": {}}
    times = [
        words.on_chart(found.made_at + timedelta(seconds=seconds)) for seconds in found.offsets
    ]
    shown = [(size, bands) for size, bands in chain.by_size if size > 1][:MOST_LINES]
    traces: list[dict[str, Any]] = [_line(_("idle"), times, chain.idle, "text-3", dash="dot")]
    traces += [
        _line(words.plural(size, "device", "devices"), times, bands, f"c{place % 8 + 1}")
        for place, (size, bands) in enumerate(shown)
    ]
    layout = {
        "yaxis": {"title": {"text": _("stranded devices")}, "rangemode": "tozero"},
        "margin": {"t": 16},
    }
    return {"data": traces, "layout": layout, "summary": describe(chain, found)}


def _line(
    name: str, times: list[str], bands: Bands, colour: str, *, dash: str = "solid"
) -> dict[str, Any]:
    return {
        "x": times,
        "y": [band[1] for band in bands],
        "name": name,
        "type": "scatter",
        "mode": "lines",
        "line": {"shape": "hv", "dash": dash},
        "colour": colour,
    }


def describe(chain: ChainFragmentationView, found: FragmentationView) -> str:
    """Describe the gang size with the most stranded devices, now and at the end."""
    if not chain.by_size or not chain.idle:
        return ""
    size, bands = max(chain.by_size, key=lambda pair: (pair[1][0][1], -pair[0]))
    return _(
        "%(idle)s idle now; %(stranded)s of them cannot be used by a gang of %(size)s. In "
        "%(hours)s h: %(later)s of %(idle_later)s."
    ) % {
        "idle": words.plural(round(chain.idle[0][1]), "device", "devices"),
        "stranded": words.count(round(bands[0][1])),
        "size": words.plural(size, "device", "devices"),
        "hours": words.count(round(found.offsets[-1] / HOUR)),
        "later": words.count(round(bands[-1][1])),
        "idle_later": words.count(round(chain.idle[-1][1])),
    }


def _time(seconds: float) -> str:
    return _("now") if not seconds else _("in %(time)s") % {"time": words.duration(seconds)}


def _range(band: Sequence[float]) -> str:
    """Return the median, and the interval from p10 to p90 if it is wider."""
    low, middle, high = (round(value) for value in band)
    return words.count(middle) if low == high else f"{middle} ({low}–{high})"
