"""The timeline: jobs by device, over a span in the address."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.http import HttpResponse
from django.urls import get_script_prefix
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.addresses import job_url, node_url
from portal.i18n import translated, word
from portal.web.cluster_drawing import tenants_in_order
from portal.web.components import words
from portal.web.components.gantt import GanttNode, GanttRun, gantt, legend, used_share
from portal.web.components.states import job_state, node_state
from portal.web.components.stats import Stat
from portal.web.devicemap import tenant_categories
from portal.web.timeline_window import Window, address_of, read_window, span_query, ways
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.names import virtual_cluster_names
from scheduling.usage.queries.timeline import (
    Timeline,
    TimelineNode,
    TimelineRun,
    first_run_at,
    runs_by_node,
    timeline,
)
from tenants.viewers import ANOTHER_TENANT

_EARLY: Final = ("preempted", "resized", "moved", "reverted", "drained", "failed")
"""Ends of runs that did not finish their work, in the order in which they are counted."""
_ALWAYS_SHOWN: Final = frozenset({"preempted", "failed"})
MOST_WORDS: Final = 200
RUNS_KEPT: Final = 4096
"""Cached drawings of runs, which are the same at each rendering."""


@require_safe
@page
def timeline_page(request: PageRequest) -> HttpResponse:
    """Show the drawing or its table, with links to other spans."""
    query = request.http.GET
    first = None if query.get("span") or query.get("since") else first_run_at()
    window = read_window(query, request.now, first=first)
    found = timeline(request.viewer, since=window.since, until=window.until)
    if window.wanted:
        found = _narrowed(found, window.wanted)
    names = tenants_in_order(request.viewer)
    nodes = _nodes(request, found, window, names)
    runs = [run for node in nodes for run in node.runs]
    drawn = gantt(
        nodes,
        since=window.since,
        until=window.until,
        now=request.now,
        complete_since=found.complete_since,
    )
    categories = {category: name for name, category in tenant_categories(names).items() if name}
    context = {
        "window": window,
        "gantt": drawn,
        "found": found,
        "stats": _stats(found, nodes, window, request.now),
        **ways(window, request.now),
        "legend": legend(runs, categories),
        "rows": _table(found) if window.view == "table" else (),
        "shown": min(len(found.runs), MOST_WORDS),
        "has_borrowed": any(run.borrowed for run in runs),
        "has_reserved": any(run.reserved for run in runs),
        "has_others": any(run.tenant is None for run in runs),
        "twin": f"/api/v1/timeline/?{span_query(window)}",
    }
    return request.render("timeline/timeline.html", context)


def _narrowed(found: Timeline, wanted: str) -> Timeline:
    nodes = tuple(node for node in found.nodes if wanted.lower() in node.name.lower())
    kept = {node.id for node in nodes}
    return Timeline(
        since=found.since,
        until=found.until,
        nodes=nodes,
        runs=tuple(run for run in found.runs if run.node_id in kept),
        complete_since=found.complete_since,
    )


def _nodes(
    request: PageRequest, found: Timeline, window: Window, names: Sequence[str]
) -> list[GanttNode]:
    tenants = tenant_categories(names)
    vcs = tenant_categories(virtual_cluster_names(request.viewer))
    runs = runs_by_node(found.runs)
    closed = address_of(window, opened=frozenset())
    here = get_language(), get_script_prefix()
    return [
        _node(
            node,
            [
                _run(
                    run, node.devices, tenants.get(run.tenant), vcs.get(run.virtual_cluster), here
                )
                for run in runs.get(node.id, ())
            ],
            window,
            closed,
        )
        for node in found.nodes
    ]


def _node(node: TimelineNode, runs: Sequence[GanttRun], window: Window, closed: str) -> GanttNode:
    """Return a node; ``closed`` is the address of the page with all nodes closed."""
    look = node_state(node.state)
    is_open = node.id in window.opened
    is_well = node.state == "ready"
    return GanttNode(
        name=node.name,
        url=node_url(node.id),
        icon="" if is_well else look.icon,
        tone="" if is_well else look.tone,
        summary=_node_says(look.word, len(node.devices), node.device_type, get_language()),
        devices=node.devices,
        runs=runs,
        is_open=is_open,
        toggle=_toggled(closed, window.opened ^ {node.id}),
    )


@lru_cache(maxsize=256)
def _node_says(word: str, devices: int, device_type: str, _language: str | None) -> str:
    return f"{translated(word)}{_(', ')}{words.devices(devices, [device_type])}"


def _toggled(closed: str, opened: frozenset[int]) -> str:
    return f"{closed}&open={','.join(map(str, sorted(opened)))}" if opened else closed


@lru_cache(maxsize=RUNS_KEPT)
def _run(
    run: TimelineRun,
    devices: tuple[int, ...],
    tenant: int | None,
    vc: int | None,
    _here: tuple[str | None, str],
) -> GanttRun:
    """Build a run for drawing; ``_here`` holds the language and the root of the addresses."""
    is_known = run.job_id is not None
    held = set(run.devices)
    return GanttRun(
        lanes=tuple(place for place, index in enumerate(devices) if index in held),
        start=run.start,
        end=run.end,
        ahead=run.latest_end,
        text=f"{run.job_id} {run.name}" if is_known else "",
        whose=f"{run.user}, {run.virtual_cluster}" if is_known else _stranger(run.tenant),
        state=run.state,
        tenant=tenant if run.tenant != ANOTHER_TENANT else None,
        vc=vc if is_known else None,
        borrowed=run.opportunistic,
        reserved=run.reserved,
        url=job_url(run.job_id),
    )


def _stranger(tenant: str) -> str:
    return _("a job of %(tenant)s") % {"tenant": words.tenant(tenant)}


def _stats(
    found: Timeline, nodes: Sequence[GanttNode], window: Window, now: datetime
) -> tuple[Stat, ...]:
    there = sum(len(node.devices) for node in found.nodes)
    at = min(now, window.until)
    in_use = sum(len(run.devices) for run in found.runs if _holds(run, at))
    known_since = max(window.since, found.complete_since or window.since)
    share = used_share(nodes, since=known_since, until=window.until, now=now)
    ended = Counter(run.state for run in found.runs if run.end is not None)
    early = {how: ended[how] for how in _EARLY if ended[how] or how in _ALWAYS_SHOWN}
    at_once = found.complete_since is not None
    return (
        Stat(
            label=gettext("In use now") if at == now else gettext("In use at the end"),
            value=words.count(in_use),
            unit=gettext("of %(devices)s") % {"devices": words.plural(there, "device", "devices")},
            context=gettext("on %(nodes)s")
            % {"nodes": words.plural(len(found.nodes), "node", "nodes")},
        ),
        Stat(
            label=gettext("Average use"),
            value="" if share is None else words.percent(share),
            context=gettext("share of device time until now"),
        ),
        Stat(
            label=gettext("Runs"),
            value=words.count(len(found.runs)),
            unit=gettext("or more") if at_once else "",
            context=gettext("%(runs)s still running")
            % {"runs": words.count(len(found.runs) - ended.total())},
        ),
        Stat(
            label=gettext("Ended early"),
            value=words.count(sum(early.values())),
            context=gettext(", ").join(
                gettext("%(count)s %(state)s") % {"count": words.count(number), "state": word(how)}
                for how, number in early.items()
            ),
        ),
    )


def _holds(run: TimelineRun, at: datetime) -> bool:
    return not run.reserved and run.start <= at and (run.end is None or run.end > at)


def _table(found: Timeline) -> list[dict[str, Any]]:
    """Return the newest runs as a table."""
    names = {node.id: node for node in found.nodes}
    newest = sorted(found.runs, key=lambda run: run.start, reverse=True)[:MOST_WORDS]
    return [
        {
            "run": run,
            "node": names[run.node_id].name,
            "node_url": node_url(run.node_id),
            "devices": ", ".join(map(str, run.devices)),
            "url": job_url(run.job_id),
            "state": gettext("Reserved") if run.reserved else job_state(run.state).word,
            "job": f"{run.job_id} {run.name}" if run.job_id else _stranger(run.tenant),
        }
        for run in newest
    ]
