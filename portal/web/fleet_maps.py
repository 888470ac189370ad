"""Maps of the page *Fleet history*: nodes, devices, health, preemptions."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy, translated
from portal.web.components import words
from portal.web.fleet_axes import (
    MOST_PX,
    ROW_PX,
    category_axis,
    height_of,
    time_axis,
    zone_seconds,
)
from scheduling.core.fleet_history import STATES, NodeTotals
from scheduling.enums import PreemptionCause
from scheduling.usage.queries.fleet import (
    OTHERS,
    FleetHistory,
    node_spells,
    preemption_counts,
)
from workers.fleet import DeviceShares

HEAT: Final = ("u0", "u1", "u2", "u3", "u4", "u5")
MOST_ROWS: Final = 200
"""Rows of a table beside a chart; the file has all of them."""
STATE_LOOKS: Final = (
    ("down", gettext_lazy("Down"), "bad"),
    ("suspect", gettext_lazy("Suspect"), "warn"),
    ("cordoned", gettext_lazy("Cordoned"), "text-3"),
    ("draining", gettext_lazy("Draining"), "c2"),
)
Rows = Sequence[Sequence[str | int | float | None]]


def nodes_figure(history: FleetHistory, measure: str) -> dict[str, Any]:
    """Build the heat map of nodes: mean utilisation, or share of allocated devices."""
    names = sorted({name for one in history.intervals for name in one.totals.nodes})
    cells = [
        [_node_share(one.totals.nodes.get(name), measure) for one in history.intervals]
        for name in names
    ]
    heat = _heat_map(history, [one.at for one in history.intervals], names, cells)
    heat["summary"] = _describe_nodes(names, cells, measure)
    return heat


def _node_share(node: NodeTotals | None, measure: str) -> float | None:
    if node is None:
        return None
    if measure == "held":
        return round(100 * node.held / node.devices, 1) if node.devices else None
    return round(100 * node.busy / node.reports, 1) if node.reports else None


def devices_figure(history: FleetHistory, shares: DeviceShares) -> dict[str, Any]:
    """Build the heat map of the devices of one node."""
    times = sorted({at for spans in shares.values() for at in spans})
    names = [_("device %(number)s") % {"number": index} for index in shares]
    cells = [
        [None if at not in spans else round(100 * spans[at], 1) for at in times]
        for spans in shares.values()
    ]
    heat = _heat_map(history, times, names, cells)
    heat["summary"] = _describe_nodes(names, cells, "busy")
    return heat


def _heat_map(
    history: FleetHistory,
    times: Sequence[datetime],
    names: Sequence[str],
    cells: Sequence[Sequence[float | None]],
) -> dict[str, Any]:
    half = timedelta(seconds=history.span_seconds / 2)
    data = {
        "type": "heatmap",
        # Plotly draws a cell around its position.
        "x": [words.on_chart(at + half) for at in times],
        "y": list(names),
        "z": [list(row) for row in cells],
        "zmin": 0,
        "zmax": 100,
        "xgap": 1,
        "ygap": 2 if len(names) <= MOST_PX / ROW_PX else 0,
        "colours": HEAT,
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": "%{y}<br>%{x|%d %b %H:%M}<br>%{z:.0f} %<extra></extra>",
    }
    return {
        "data": [data] if names else [],
        "layout": {
            **time_axis(history),
            "yaxis": category_axis(len(names)),
            "hovermode": "closest",
            "height": height_of(len(names)),
            "margin": {"l": 96},
        },
        "zone_seconds": zone_seconds(history),
        "table": {
            "head": [_("Name"), _("Mean"), _("Lowest"), _("Highest")],
            "rows": [_row_of(name, row) for name, row in zip(names, cells, strict=True)][
                :MOST_ROWS
            ],
        },
    }


def _row_of(name: str, cells: Sequence[float | None]) -> list[str]:
    known = [cell for cell in cells if cell is not None]
    if not known:
        return [name, "–", "–", "–"]
    values = (sum(known) / len(known), min(known), max(known))
    return [name, *(words.percent(value / 100) for value in values)]


def _describe_nodes(
    names: Sequence[str], cells: Sequence[Sequence[float | None]], measure: str
) -> str:
    means = [
        (sum(known) / len(known), name)
        for name, row in zip(names, cells, strict=True)
        if (known := [cell for cell in row if cell is not None])
    ]
    if not means:
        return _("No reports in this range. Choose a longer one.")
    text = (
        _("Mean allocation %(mean)s; lowest: %(name)s with %(low)s.")
        if measure == "held"
        else _("Mean utilisation %(mean)s; lowest: %(name)s with %(low)s.")
    )
    low, name = min(means)
    return text % {
        "mean": words.percent(sum(mean for mean, _name in means) / len(means) / 100),
        "name": name,
        "low": words.percent(low / 100),
    }


def health_figure(history: FleetHistory) -> dict[str, Any]:
    """Build bars of the times in which nodes were not ready, one row for each such node."""
    spells = node_spells(history)
    names = sorted({one.node for one in spells}, reverse=True)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": str(title),
            "y": [one.node for one in found],
            "base": [words.on_chart(one.since) for one in found],
            "x": [(one.until - one.since).total_seconds() * 1000 for one in found],
            "text": [words.duration((one.until - one.since).total_seconds()) for one in found],
            "textposition": "none",
            "width": 0.6,
            "colour": colour,
            "marker": {"line": {"width": 0}},
            "hovertemplate": "%{y}<br>%{base|%d %b %H:%M}, %{text}<extra>%{fullData.name}</extra>",
        }
        for state, title, colour in STATE_LOOKS
        if (found := [one for one in spells if STATES[one.state] == state])
    ]
    titles = {state: str(title) for state, title, _colour in STATE_LOOKS}
    return {
        "data": traces,
        "layout": {
            **time_axis(history),
            "yaxis": {**category_axis(len(names)), "categoryarray": names, "autorange": True},
            "barmode": "overlay",
            "hovermode": "closest",
            "height": height_of(len(names)),
            "margin": {"l": 96},
        },
        "zone_seconds": zone_seconds(history),
        "keyed": True,
        "empty": _("All nodes were ready in this range."),
        "summary": _("%(spells)s of %(nodes)s; each lasts whole intervals.")
        % {
            "spells": words.plural(len(spells), "interruption", "interruptions"),
            "nodes": words.plural(len(names), "node", "nodes"),
        }
        if spells
        else _("All nodes were ready in this range."),
        "table": {
            "head": [_("Node"), _("State"), _("Since"), _("Until")],
            "rows": [
                [
                    one.node,
                    titles[STATES[one.state]],
                    words.clock(one.since),
                    words.clock(one.until),
                ]
                for one in spells[:MOST_ROWS]
            ],
        },
    }


def preemptions_figure(history: FleetHistory) -> dict[str, Any]:
    """Build the matrix of preempted virtual clusters and beneficiaries."""
    counts = preemption_counts(history)
    pairs: dict[tuple[str, str], int] = {}
    for (victim, winner, cause), count in counts.items():
        key = (_vc_name(history, victim), winner_name(history.names, winner, cause))
        pairs[key] = pairs.get(key, 0) + count
    victims = sorted({victim for victim, _winner in pairs})
    winners = sorted({winner for _victim, winner in pairs})
    data = {
        "type": "heatmap",
        "x": winners,
        "y": victims,
        "z": [[pairs.get((victim, winner)) for winner in winners] for victim in victims],
        "zmin": 0,
        "xgap": 2,
        "ygap": 2,
        "colours": HEAT,
        "showscale": False,
        "hoverongaps": False,
        "texttemplate": "%{z}",
        "hovertemplate": "%{y} → %{x}<br>%{z}<extra></extra>",
    }
    total = sum(counts.values())
    largest = max(pairs.items(), key=lambda item: (item[1], item[0]), default=None)
    return {
        "data": [data] if pairs else [],
        "layout": {
            "xaxis": {"title": {"text": _("for")}, "type": "category"},
            "yaxis": {
                **category_axis(len(victims)),
                "title": {"text": _("preempted"), "standoff": 12},
            },
            "hovermode": "closest",
            "height": 90 + 34 * max(len(victims), 1),
            "margin": {"l": 120, "b": 56},
        },
        "empty": _("No preemptions in this range."),
        "summary": _("%(count)s; most often %(victim)s for %(winner)s.")
        % {
            "count": words.plural(total, "preemption", "preemptions"),
            "victim": largest[0][0],
            "winner": largest[0][1],
        }
        if largest
        else _("No preemptions in this range."),
        "table": {
            "head": [_("Preempted"), _("For"), _("Cause"), _("Number")],
            "rows": preemption_rows(history)[:MOST_ROWS],
        },
    }


def preemption_rows(history: FleetHistory) -> list[list[str]]:
    """Return preempted virtual cluster, beneficiary, cause and number, most frequent first."""
    causes = dict(PreemptionCause.choices)
    return [
        [
            _vc_name(history, victim),
            winner_name(history.names, winner, cause),
            translated(str(causes.get(cause, cause))),
            words.count(count),
        ]
        for (victim, winner, cause), count in sorted(
            preemption_counts(history).items(), key=lambda item: (-item[1], item[0])
        )
    ]


def _vc_name(history: FleetHistory, pk: int) -> str:
    return _("another tenant") if pk == OTHERS else history.names[pk]


def winner_name(names: Mapping[int, str], winner: int, cause: str) -> str:
    """Return the name of a beneficiary, or the cause if no job benefits."""
    if winner:
        return _("another tenant") if winner == OTHERS else names[winner]
    return str(translated(str(dict(PreemptionCause.choices).get(cause, cause))))
