"""Page *Fleet history*: linked charts of nodes, waits, shares, idle devices and preemptions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpResponse, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from portal.i18n import gettext_lazy
from portal.web import fleet_lines, fleet_maps
from portal.web.components import words
from portal.web.components.stats import PageVerdict
from portal.web.fleet_axes import span_in_words
from portal.web.viewing import PageRequest, page
from scheduling.core.messages import sentence
from scheduling.usage.queries.fleet import (
    FleetHistory,
    FleetPart,
    FleetRange,
    NodeNow,
    fleet_history,
    nodes_now,
)
from tenants.errors import InvalidError, NotFoundError
from workers.fleet import device_shares

RANGES: Final = (
    (FleetRange.DAY, gettext_lazy("24 h")),
    (FleetRange.WEEK, gettext_lazy("7 d")),
    (FleetRange.MONTH, gettext_lazy("30 d")),
    (FleetRange.QUARTER, gettext_lazy("90 d")),
)
MEASURES: Final = (("busy", gettext_lazy("Utilisation")), ("held", gettext_lazy("Allocated")))
MOST_NAMED: Final = 3
Figure = dict[str, Any]

CHARTS: Final[Mapping[str, tuple[FleetPart, Callable[[FleetHistory], Figure]]]] = {
    "health": (FleetPart.NODES, fleet_maps.health_figure),
    "waits": (FleetPart.WAITS, fleet_lines.waits_figure),
    "shares": (FleetPart.VIRTUAL_CLUSTERS, fleet_lines.shares_figure),
    "free": (FleetPart.FREE, fleet_lines.free_figure),
    "preemptions": (FleetPart.PREEMPTIONS, fleet_maps.preemptions_figure),
}
"""Charts with the part of the history that they show; the heat map has options of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Options in the address.

    Attributes:
        measure: of the heat map: ``busy`` or ``held``.
        node: the node whose devices are shown; empty for all nodes.
        virtual_cluster: the only one in the charts of waits, shares and preemptions.
    """

    range: FleetRange
    measure: str
    node: str
    virtual_cluster: str

    def query(self, **changes: str) -> str:
        """Return the options as a query string, with changes."""
        values = {
            "range": self.range.value,
            "measure": self.measure,
            "node": self.node,
            "virtual_cluster": self.virtual_cluster,
        }
        return urlencode({name: value for name, value in {**values, **changes}.items() if value})


@require_safe
@page
def fleet(asked: PageRequest) -> HttpResponse:
    """Show the page; each chart fetches its figure when it comes into view."""
    options = _options(asked)
    history = fleet_history(
        asked.viewer, options.range, (FleetPart.NODES,), now=asked.now, newest=True
    )
    if options.virtual_cluster and options.virtual_cluster not in history.names.values():
        raise NotFoundError(sentence("no-such-virtual-cluster"), field="virtual_cluster")
    last = history.intervals[-1].totals.nodes if history.intervals else {}
    context = {
        "is_empty": not history.intervals,
        "verdict": fleet_verdict(nodes_now(asked.viewer)),
        "options": options,
        "ranges": [
            (f"?{options.query(range=one)}", text, one == options.range) for one, text in RANGES
        ],
        "measures": [
            (f"?{options.query(measure=one)}", text, one == options.measure)
            for one, text in MEASURES
        ],
        "names": sorted(history.names.values()),
        "nodes": sorted(last),
        "cell": span_in_words(history.span_seconds),
        "urls": {
            name: f"{reverse('fleet-figure', args=[name])}?{options.query()}"
            for name in ("nodes", *CHARTS)
        },
        "files": {
            name: f"/api/v1/fleet/?{_file_query(options, part)}"
            for name, part in (
                ("nodes", FleetPart.NODES),
                *((name, part) for name, (part, _build) in CHARTS.items()),
            )
        },
        "twin": f"/api/v1/fleet/?{urlencode({'part': 'nodes', 'range': options.range.value})}",
    }
    return asked.render("fleet/fleet.html", context)


def fleet_verdict(nodes: Sequence[NodeNow]) -> PageVerdict:
    """Return whether all nodes are ready; otherwise the others, with state and its begin."""
    total = words.plural(len(nodes), "node", "nodes")
    titles = {state: (title, colour) for state, title, colour in fleet_maps.STATE_LOOKS}
    faulty = [one for one in nodes if one.state in titles]
    if not nodes:
        return PageVerdict(text=_("The cluster has no nodes."))
    if not faulty:
        text = ngettext(
            "The only node is ready.", "All %(nodes)s nodes are ready.", len(nodes)
        ) % {"nodes": words.count(len(nodes))}
        return PageVerdict(tone="ok", text=text)
    worst = min(list(titles).index(one.state) for one in faulty)
    faulty.sort(key=lambda one: (list(titles).index(one.state), one.since, one.name))
    parts = [
        _("%(node)s (%(state)s since %(time)s)")
        % {
            "node": one.name,
            "state": str(titles[one.state][0]).lower(),
            "time": words.clock(one.since),
        }
        for one in faulty[:MOST_NAMED]
    ]
    if len(faulty) > MOST_NAMED:
        parts.append(_("%(count)s more") % {"count": words.count(len(faulty) - MOST_NAMED)})
    return PageVerdict(
        tone="bad" if worst == 0 else "warn",
        text=ngettext(
            "%(count)s of %(nodes)s is not ready: %(names)s.",
            "%(count)s of %(nodes)s are not ready: %(names)s.",
            len(faulty),
        )
        % {
            "count": words.count(len(faulty)),
            "nodes": total,
            "names": _(", ").join(parts),
        },
    )


def _file_query(options: FleetOptions, part: FleetPart) -> str:
    query = {"part": part.value, "range": options.range.value, "format": "csv"}
    if options.virtual_cluster and part not in (FleetPart.NODES, FleetPart.FREE):
        query["virtual_cluster"] = options.virtual_cluster
    return urlencode(query)


@require_safe
@page
def figure(asked: PageRequest, chart: str) -> HttpResponse:
    """Return one figure as JSON."""
    options = _options(asked)
    if chart == "nodes":
        found = _heat_map(asked, options)
    elif chart in CHARTS:
        part, build = CHARTS[chart]
        parts = {part, FleetPart.VIRTUAL_CLUSTERS} if chart == "waits" else {part}
        found = build(
            fleet_history(
                asked.viewer,
                options.range,
                parts,
                now=asked.now,
                virtual_cluster=options.virtual_cluster,
            )
        )
    else:
        raise NotFoundError(_("This chart does not exist."), field="chart", value=chart)
    return JsonResponse(found, headers={"Cache-Control": "private, no-store"})


def _heat_map(asked: PageRequest, options: FleetOptions) -> Figure:
    if not options.node:
        history = fleet_history(asked.viewer, options.range, (FleetPart.NODES,), now=asked.now)
        return fleet_maps.nodes_figure(history, options.measure)
    history = fleet_history(asked.viewer, options.range, (), now=asked.now)
    found = device_shares(
        asked.viewer, options.node, since=history.since, span_seconds=history.span_seconds
    )
    return fleet_maps.devices_figure(history, found)


def _options(asked: PageRequest) -> FleetOptions:
    query = asked.http.GET
    wanted = query.get("range", "") or FleetRange.DAY.value
    if wanted not in list(FleetRange):
        raise InvalidError(
            _("This is not a valid range."),
            field="range",
            value=wanted[:40],
            remedy=_("Use one of: %(ranges)s.") % {"ranges": ", ".join(FleetRange)},
        )
    measure = query.get("measure", "")
    return FleetOptions(
        range=FleetRange(wanted),
        measure=measure if measure in dict(MEASURES) else "busy",
        node=query.get("node", "")[:63],
        virtual_cluster=query.get("virtual_cluster", "")[:63],
    )
