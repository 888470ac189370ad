"""The overview: running jobs, free devices, waiting jobs with reasons."""

from dataclasses import dataclass, replace
from typing import Any, Final

from django.http import HttpRequest, JsonResponse, QueryDict
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.i18n import word
from portal.web.attention import attention
from portal.web.cluster_drawing import (
    Readings,
    day_figure,
    drawn_cluster,
    level_word,
    tenants_in_order,
    utilisation_now,
    vc_uses,
)
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.first_steps import first_steps
from portal.web.viewing import PageRequest, once_a_version, page
from scheduling.clusters.queries.cluster import ClusterView, Totals, cluster_snapshot
from scheduling.clusters.queries.shared_devices import cluster_sharing, guests_on_devices
from scheduling.clusters.queries.shares import FreeChain
from scheduling.jobs.queries.jobs import JobFilter, JobRow, counts_by_reason, page_of_queue
from tenants.roles import Permission
from tenants.viewers import Viewer
from workers.day import cluster_day, efficiency_now

COLOURS: Final = ("state", "utilisation", "tenant", "job")
VIEWS: Final = ("map", "table")
QUEUE_ROWS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewOptions:
    """Display options in the address."""

    colour: str
    view: str
    reason: str
    snoozed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRow:
    """Gangs that one chain could start now.

    Attributes:
        cells: free cells by level, in the order of the table's columns; None where the chain has
            no such level.
    """

    device_type: str
    largest: int
    where: str
    idle: int
    nodes_with_idle: int
    cells: tuple[int | None, ...]


@page
def overview(asked: PageRequest) -> HttpResponseBase:
    """Show the whole page, or with ``part`` one of its live parts."""
    look = look_of(query_of_page(asked.http))
    part = asked.http.GET.get("part", "")
    if asked.wants_part and part == "queue":
        return once_a_version(
            asked,
            ("queue", look),
            lambda: asked.render("overview/_queue_swap.html", queue_context(asked, look)),
        )
    if asked.wants_part and part == "attention":
        cluster = cluster_snapshot(asked.viewer, now=asked.now)
        found = attention(asked, cluster, snoozed=look.snoozed)
        return asked.render("overview/_attention.html", {"attention": found})
    if asked.wants_part:
        return once_a_version(
            asked,
            ("live", look),
            lambda: asked.render("overview/_live.html", live_context(asked, look)),
        )
    live = live_context(asked, look)
    context = {
        **live,
        "first_steps": first_steps(asked, has_nodes=bool(live["cluster"].nodes)),
        "attention": attention(asked, live["cluster"], snoozed=look.snoozed),
        **queue_context(asked, look),
        "can_submit": asked.viewer.can_somewhere(Permission.SUBMIT_JOBS),
    }
    return asked.render("overview/overview.html", context)


@page
def day(asked: PageRequest) -> HttpResponseBase:
    """Return the figure of the last day, fetched when the chart comes into view."""
    return JsonResponse(day_figure(cluster_day(asked.viewer, now=asked.now)))


def query_of_page(request: HttpRequest) -> QueryDict:
    """Return the query of the reader's page, also in requests for a part of it."""
    current = request.headers.get("HX-Current-URL", "")
    if request.headers.get("HX-Request") != "true" or not current:
        return request.GET
    return QueryDict(current.partition("?")[2].partition("#")[0])


def look_of(query: QueryDict) -> OverviewOptions:
    """Read colour, view and filter from the query; invalid values are ignored."""
    colour, view = query.get("colour", ""), query.get("view", "")
    return OverviewOptions(
        colour=colour if colour in COLOURS else "tenant",
        view=view if view in VIEWS else "map",
        reason=query.get("reason", "")[:40],
        snoozed=query.get("snoozed") == "1",
    )


def live_context(asked: PageRequest, look: OverviewOptions) -> dict[str, Any]:
    """Return numbers, map, bars and gangs, all of one instant."""
    cluster = cluster_snapshot(asked.viewer, now=asked.now)
    tenants = tenants_in_order(asked.viewer)
    readings = utilisation_now([node.id for node in cluster.nodes], now=asked.now)
    columns, gangs = gang_table(cluster.free)
    guests = guests_on_devices(asked.viewer, now=asked.now)
    return {
        "cluster": cluster,
        "stats": stats(cluster, readings, efficiency=efficiency_now(asked.viewer, now=asked.now)),
        "map": drawn_cluster(
            cluster.nodes,
            readings,
            tenants,
            colour=look.colour,
            in_words=look.view == "table",
            guests=guests,
        ),
        "sharing_stats": sharing_stats(asked) if guests else (),
        "look": look,
        "colours": COLOURS,
        "uses": vc_uses(cluster.virtual_clusters, tenants),
        "unassigned": unassigned(cluster),
        "gang_columns": columns,
        "gangs": gangs,
        "gang_notes": gang_notes(cluster.free),
        "can_add_nodes": asked.viewer.can(Permission.MANAGE_NODES),
    }


def queue_context(asked: PageRequest, look: OverviewOptions) -> dict[str, Any]:
    """Return the head of the queue, with the reasons to filter by."""
    reasons = counts_by_reason(asked.viewer)
    queued = sum(reasons.values())
    wanted = reasons.get(look.reason, 0) if look.reason else queued
    return {
        "queue": _head_of_queue(asked.viewer, look.reason, wanted),
        "reasons": [(code, count) for code, count in reasons.items() if code],
        "queued": queued,
        "look": look,
    }


def _head_of_queue(viewer: Viewer, reason: str, wanted: int) -> tuple[JobRow, ...]:
    """Return jobs that wait for devices, then held ones: a sweep may hold hundreds."""
    filters = JobFilter(reason=reason, held=False)
    rows = page_of_queue(viewer, filters, limit=QUEUE_ROWS).results
    left = min(QUEUE_ROWS, wanted) - len(rows)
    if left > 0:
        held = replace(filters, held=True)
        rows = (*rows, *page_of_queue(viewer, held, limit=left).results)
    return rows


def stats(
    cluster: ClusterView, readings: Readings, *, efficiency: float | None
) -> tuple[Stat, ...]:
    """Build the tiles at the top of the page."""
    totals = cluster.totals
    return (
        _in_use(totals),
        _utilisation(cluster, readings),
        _efficiency(efficiency),
        _jobs(totals),
        _wait(totals),
    )


def sharing_stats(asked: PageRequest) -> tuple[Stat, ...]:
    """Build the tiles of device sharing, for a cluster with guests."""
    found = cluster_sharing(asked.viewer, now=asked.now)
    states = [
        _("%(count)s %(state)s") % {"count": words.count(number), "state": word(state)}
        for state, number in sorted(found.guests.items())
    ]
    loss = _("not measured yet") if found.loss_p95 is None else ""
    value, unit = words.percent(max(found.loss_p95 or 0.0, 0.0)).split(words.NO_BREAK)
    limit = _("limit %(share)s") % {"share": words.percent(found.limit or 0.0)}
    return (
        Stat(
            label=_("Devices with guests"),
            value=words.count(found.devices),
            context=_(", ").join(states),
        ),
        Stat(label=_("Loss of holders, p95"), context=loss)
        if loss
        else Stat(label=_("Loss of holders, p95"), value=value, unit=unit, context=limit),
        Stat(
            label=_("Over the limit"),
            value=words.count(found.over_limit),
            unit=word("holder" if found.over_limit == 1 else "holders"),
            context=_("last 24 h"),
        ),
        Stat(
            label=_("Delay by guests"),
            value=words.duration(found.delay_seconds),
            context=_("today (UTC), all holders"),
        ),
    )


def unassigned(cluster: ClusterView) -> str:
    """Format ``4 A100 and 8 RTX6000 devices``; empty if all are guaranteed."""
    types = {chain.name: chain.device_type for chain in cluster.chains}
    by_type: dict[str, int] = {}
    for chain, count in cluster.unassigned.items():
        name = types.get(chain, chain)
        by_type[name] = by_type.get(name, 0) + count
    parts = [
        _("%(count)s %(type)s") % {"count": words.count(count), "type": name}
        for name, count in by_type.items()
        if count
    ]
    if not parts:
        return ""
    shape = _("%(counted)s device") if sum(by_type.values()) == 1 else _("%(counted)s devices")
    return shape % {"counted": pgettext("between types", " and ").join(parts)}


def gang_table(free: tuple[FreeChain, ...]) -> tuple[tuple[str, ...], tuple[GangRow, ...]]:
    """Return columns (levels, the largest first) and rows of gangs that could start now."""
    order = ("pool", "rack", "node", "socket", "numa", "nvlink", "pcie", "switch", "device")
    there = {level.level for chain in free for level in chain.levels}
    columns = (*(sorted(there - set(order))), *(word for word in order if word in there))
    rows = tuple(
        GangRow(
            device_type=chain.device_type,
            largest=chain.largest_cell,
            where=level_word(chain.largest_cell_level),
            idle=chain.idle,
            nodes_with_idle=chain.nodes_with_idle,
            cells=tuple(_cells_of(chain, word) for word in columns),
        )
        for chain in free
    )
    return tuple(level_word(word) for word in columns), rows


def gang_notes(free: tuple[FreeChain, ...]) -> tuple[str, ...]:
    """Describe each chain whose idle devices do not form a whole node."""
    return tuple(
        ngettext(
            "No %(type)s node is completely free; %(count)s is partly free.",
            "No %(type)s node is completely free; %(count)s are partly free.",
            chain.nodes_with_idle,
        )
        % {"type": chain.device_type, "count": words.count(chain.nodes_with_idle)}
        for chain in free
        if chain.idle and not chain.nodes_whole
    )


def _cells_of(chain: FreeChain, word: str) -> int | None:
    found = [level.cells for level in chain.levels if level.level == word]
    return sum(found) if found else None


def _in_use(totals: Totals) -> Stat:
    out = totals.devices - totals.healthy
    context = _("%(devices)s total") % {"devices": words.count(totals.devices)}
    if out:
        context += _(", %(out)s unhealthy") % {"out": words.count(out)}
    if totals.cordoned:
        context += _(", %(cordoned)s cordoned") % {"cordoned": words.count(totals.cordoned)}
    if totals.borrowed:
        context += _(", %(borrowed)s borrowed") % {"borrowed": words.count(totals.borrowed)}
    return Stat(
        label=_("Devices in use"),
        value=words.count(totals.in_use),
        bind="in_use",
        unit=_("of %(healthy)s healthy") % {"healthy": words.count(totals.healthy)},
        context=context,
    )


def _utilisation(cluster: ClusterView, readings: Readings) -> Stat:
    shares = [
        share
        for node in cluster.nodes
        for device in node.devices
        if device.occupant is not None and not device.occupant.reserved
        for share in [_reading(readings, node.id, device.index)]
        if share is not None
    ]
    if not shares:
        return Stat(
            label=_("Utilisation (devices in use)"), context=_("no data in the last minutes")
        )
    told = _("reported by %(devices)s") % {
        "devices": words.plural(len(shares), "device", "devices")
    }
    value, unit = words.percent(sum(shares) / len(shares)).split(words.NO_BREAK)
    return Stat(label=_("Utilisation (devices in use)"), value=value, unit=unit, context=told)


def _efficiency(share: float | None) -> Stat:
    label = _("Training efficiency")
    if share is None:
        return Stat(label=label, context=_("not reported by any running job"))
    return Stat(
        label=label,
        value=words.decimal(share, 2),
        context=_("share of useful samples, last 10 min"),
    )


def _reading(readings: Readings, node_id: int, index: int) -> float | None:
    shares = readings.get(node_id, ())
    return shares[index] if index < len(shares) else None


def _jobs(totals: Totals) -> Stat:
    jobs = totals.jobs
    named = ("queued", "admitted", "starting", "suspect", "preempting", "stopping")
    rest = [
        _("%(count)s %(state)s") % {"count": words.count(jobs[state]), "state": word(state)}
        for state in named
        if jobs.get(state)
    ]
    return Stat(
        label=_("Jobs"),
        value=words.count(jobs.get("running", 0)),
        unit=_("running"),
        context=_(", ").join(rest) or _("none queued"),
    )


def _wait(totals: Totals) -> Stat:
    if totals.median_wait_seconds is None or totals.p90_wait_seconds is None:
        return Stat(label=_("Queue wait, last 24 h"), context=_("no job started in the last 24 h"))
    return Stat(
        label=_("Queue wait, last 24 h"),
        value=words.duration(totals.median_wait_seconds),
        unit=_("median"),
        context=_("p90 %(p90_wait_seconds)s")
        % {"p90_wait_seconds": words.duration(totals.p90_wait_seconds)},
    )
