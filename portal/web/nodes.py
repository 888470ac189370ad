"""Nodes: the list, and one node with its state by database, runner and devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from portal.i18n import word
from portal.web.cluster_drawing import (
    level_word,
    map_node,
    node_strip,
    shares_of,
    tenants_in_order,
    utilisation_now,
)
from portal.web.components import words
from portal.web.components.mapvalues import MapGroup
from portal.web.components.stats import Stat
from portal.web.devicemap import device_map
from portal.web.node_acts import ACTS, acts_for
from portal.web.overview import COLOURS, query_of_page
from portal.web.viewing import PageRequest, page
from scheduling.clusters.models.nodes import CONSENTS
from scheduling.clusters.queries.conditions import ConditionRow, GpuRow
from scheduling.clusters.queries.node_truth import TruthRow
from scheduling.clusters.queries.nodes import NodeDetail, NodeRow, list_nodes, node_detail
from scheduling.clusters.queries.shared_devices import node_sharing
from scheduling.clusters.services.cluster_rules import cluster_rules
from scheduling.parallelism.links import links_of_node
from scheduling.runs.queries.device_failures import failures_of_node
from tenants.roles import Permission
from tessera.isolation import LEVELS, PLAIN_LEVELS
from workers.conf import public_key
from workers.services.telemetry import current_readings

MOST_ROWS: Final = 50
STATES: Final = ("ready", "suspect", "down", "cordoned", "draining")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownNode:
    """A row of the list: the node, its devices as a strip, and the line below its state.

    Attributes:
        use: mean utilisation of the devices in use by jobs; None if unknown.
    """

    row: NodeRow
    strip: MapGroup
    use: float | None
    reason: str
    truth: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthGroup:
    """Devices with the same state by database, runner and device."""

    devices: str
    said: TruthRow
    use: str


@page
def nodes(asked: PageRequest) -> HttpResponseBase:
    """Show the list, or only its rows."""
    query = query_of_page(asked.http)
    may = asked.viewer.can(Permission.MANAGE_NODES)
    everything = list_nodes(asked.viewer)
    filters = {name: query.get(name, "")[:100] for name in ("state", "type", "isolation", "q")}
    matching = [row for row in everything if _matches(row, filters)]
    cursor = query.get("cursor", "")
    later = [row for row in matching if row.name > cursor]
    shown = later[:MOST_ROWS]
    tenants = tenants_in_order(asked.viewer)
    readings = utilisation_now([row.id for row in shown], now=asked.now)
    context = {
        "rows": [_shown(row, tenants, readings.get(row.id, ())) for row in shown],
        "count": len(matching),
        "next_cursor": shown[-1].name if len(later) > len(shown) else "",
        "filters": filters,
        "states": STATES,
        "types": sorted({found.type for row in everything for found in row.view.types}),
        "can_manage": may,
        "stats": _stats(everything, asked.now),
        "strip_colour": "utilisation" if readings else "tenant",
        "is_empty": not everything,
        "plain_levels": [
            level for level in PLAIN_LEVELS if any(r.isolation.level == level for r in everything)
        ],
        "levels": LEVELS,
        "rules": cluster_rules() if may and not asked.wants_part else None,
    }
    if asked.wants_part:
        return asked.render("nodes/_swap.html", context)
    return asked.render("nodes/nodes.html", context)


@page
def node(asked: PageRequest, node_id: int) -> HttpResponseBase:
    """Show one node, or its live part."""
    template = "nodes/_node_swap.html" if asked.wants_part else "nodes/node.html"
    return asked.render(template, node_context(asked, node_id))


def node_context(asked: PageRequest, node_id: int) -> dict[str, Any]:
    detail = node_detail(asked.viewer, node_id)
    is_known = detail.row.probed_at is not None
    query = query_of_page(asked.http)
    colour = query.get("colour", "")
    tenants = tenants_in_order(asked.viewer)
    reading = current_readings(node_ids=[node_id], now=asked.now).get(node_id, {})
    shares = shares_of(reading.get("utilisation"))
    sharing = node_sharing(asked.viewer, node_id, now=asked.now)
    ids = {device.index: device.id for device in detail.row.view.devices}
    guests = {ids[one.index]: one.guests for one in sharing.devices if one.index in ids}
    drawn = map_node(detail.row.view, shares, guests)
    return {
        "sharing": sharing,
        "links": links_of_node(asked.viewer, detail.row.name, now=asked.now)
        if detail.can_manage
        else (),
        "consents": CONSENTS,
        "detail": detail,
        "row": detail.row,
        "stats": _node_stats(detail.row, asked.now),
        "reason": state_reason(detail.row),
        "map": device_map(
            [drawn], tenants=tenants, colour=colour if colour in COLOURS else "tenant"
        ),
        "truth": truth_groups(detail.truth, shares),
        "gpus": gpu_lines(detail, reading),
        "node_conditions": [row for row in detail.conditions if row.device is None],
        "disagreements": sum(not row.agrees for row in detail.truth),
        "acts": acts_for(detail.row, detail.declared_dead_at),
        "every_act": ACTS.values(),
        "failures": failures_of_node(node_id, now=asked.now) if detail.can_manage else None,
        "shape": _shape_words(detail),
        "is_known": is_known,
        "portal_key": public_key() if detail.can_manage and not is_known else "",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine:
    """A GPU with its conditions, its temperature in degrees Celsius and its power in watts."""

    gpu: GpuRow
    conditions: tuple[ConditionRow, ...]
    temperature: float | None
    power: float | None


def gpu_lines(detail: NodeDetail, reading: Mapping[str, Any]) -> tuple[GpuLine, ...]:
    """Return the GPUs of a node, with the newest reading by device number."""

    def value(name: str, index: int) -> float | None:
        values = reading.get(name) or ()
        return values[index] if index < len(values) else None

    return tuple(
        GpuLine(
            gpu=gpu,
            conditions=tuple(row for row in detail.conditions if row.device == gpu.index),
            temperature=value("temperature", gpu.index),
            power=value("power", gpu.index),
        )
        for gpu in detail.gpus
    )


def truth_groups(
    rows: Sequence[TruthRow], shares: Sequence[float | None] = ()
) -> tuple[TruthGroup, ...]:
    """Merge adjacent devices with the same state by database, runner and device into one line."""
    groups: list[tuple[list[int], TruthRow]] = []
    for row in rows:
        last = groups[-1] if groups else None
        if last is not None and _said(last[1]) == _said(row):
            last[0].append(row.device_index)
        else:
            groups.append(([row.device_index], row))
    return tuple(
        TruthGroup(devices=_span(indices), said=row, use=_use(indices, shares))
        for indices, row in groups
    )


def _use(indices: Sequence[int], shares: Sequence[float | None]) -> str:
    known = [shares[index] for index in indices if index < len(shares)]
    told = [share for share in known if share is not None]
    if not told:
        return ""
    return _("%(share)s busy") % {"share": words.percent(sum(told) / len(told))}


def _said(row: TruthRow) -> tuple[object, ...]:
    return row.job_id, row.database, row.runner, row.device, row.verdict


def _span(indices: Sequence[int]) -> str:
    first, last = indices[0], indices[-1]
    if len(indices) > 1 and last - first == len(indices) - 1:
        return f"{first} {words.DASH} {last}"
    return ", ".join(str(index) for index in indices)


def _matches(row: NodeRow, filters: dict[str, str]) -> bool:
    if filters["state"] and row.state != filters["state"]:
        return False
    if filters["type"] and filters["type"] not in {found.type for found in row.view.types}:
        return False
    if filters["isolation"] and row.isolation.level != filters["isolation"]:
        return False
    text = filters["q"].strip().casefold()
    labels = (f"{key}={value}" for key, value in row.labels.items())
    return not text or any(
        text in part.casefold() for part in (row.name, row.view.rack, row.host, *labels)
    )


def _shown(row: NodeRow, tenants: Sequence[str], shares: Sequence[float | None]) -> ShownNode:
    held = [
        share
        for device in row.view.devices
        if device.occupant is not None and device.index < len(shares)
        for share in [shares[device.index]]
        if share is not None
    ]
    return ShownNode(
        row=row,
        strip=node_strip(row.view, shares, tenants),
        use=sum(held) / len(held) if held else None,
        reason=_reason(row),
        truth={True: "agree", False: "disagree", None: _("unknown")}[row.agrees],
    )


def state_reason(row: NodeRow) -> str:
    """Return why the node is not ready, as far as the viewer may see it."""
    return row.view.state_reason if row.state != "ready" else ""


def _reason(row: NodeRow) -> str:
    """Return the line below the state in the list."""
    out = len(row.view.devices) - row.healthy
    return row.view.state_reason or (
        _("%(out)s unhealthy") % {"out": words.plural(out, "device", "devices")} if out else ""
    )


def _stats(rows: Sequence[NodeRow], now: datetime) -> tuple[Stat, ...]:
    by_state = {state: sum(row.state == state for row in rows) for state in STATES}
    counted = [
        _("%(count)s %(state)s") % {"count": words.count(number), "state": word(state)}
        for state, number in by_state.items()
        if number
    ]
    devices = sum(len(row.view.devices) for row in rows)
    healthy = sum(row.healthy for row in rows)
    out = [row.name for row in rows if row.healthy < len(row.view.devices)]
    wrong = [row.name for row in rows if row.agrees is False]
    heard = [(row.last_contact_at, row.name, row.state) for row in rows if row.last_contact_at]
    oldest = min(heard, default=None)
    return (
        Stat(label=_("Nodes"), value=words.count(len(rows)), context=_(", ").join(counted)),
        Stat(
            label=_("Healthy devices"),
            value=words.count(healthy),
            unit=_("of %(devices)s") % {"devices": words.count(devices)},
            context=_("unhealthy on %(out)s") % {"out": _some(out)} if out else _("all healthy"),
        ),
        Stat(
            label=_("Inconsistent nodes"),
            value=words.count(len(wrong)),
            context=_some(wrong) if wrong else _("database and runners are consistent"),
            tone="bad" if wrong else "",
        ),
        Stat(
            label=_("Longest silence"),
            value=words.duration((now - oldest[0]).total_seconds()) if oldest else "",
            context=_("%(name)s: %(state)s") % {"name": oldest[1], "state": word(oldest[2])}
            if oldest
            else _("no response from any node yet"),
        ),
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - 2
    shown = _(", ").join(names[:2])
    return _("%(names)s and %(more)s more") % {"names": shown, "more": more} if more > 0 else shown


def _node_stats(row: NodeRow, now: datetime) -> tuple[Stat, ...]:
    devices = len(row.view.devices)
    heard = row.last_contact_at
    return (
        Stat(
            label=_("Devices in use"),
            value=words.count(row.in_use),
            unit=_("of %(devices)s") % {"devices": words.count(devices)},
            context=_("%(healthy)s healthy") % {"healthy": words.count(row.healthy)}
            if devices
            else _("not probed yet"),
        ),
        Stat(
            label=_("Jobs on this node"),
            value=words.count(row.jobs),
            context=_("%(running)s confirmed by the runner")
            % {"running": words.plural(row.running, "rank", "ranks")},
        ),
        Stat(
            label=_("CPUs and memory"),
            value=words.count(row.cpus) if row.cpus else "",
            unit=_("cores, %(memory_bytes)s")
            % {"memory_bytes": words.file_size(row.memory_bytes)},
            context=_("with a container engine") if row.has_docker else _("no container engine"),
        ),
        Stat(
            label=_("Last contact"),
            value=words.duration((now - heard).total_seconds()) if heard else "",
            unit=_("ago"),
            context=_("no response yet")
            if heard is None
            else _("contact: %(word_contact)s") % {"word_contact": word(row.contact)},
        ),
    )


def _shape_words(detail: NodeDetail) -> str:
    parts: list[str] = []
    here = detail.row.view.tree
    while here.children:
        parts.append(f"{level_word(here.level)} {_leaves(here)}")
        here = here.children[0]
    return _(", ").join(parts)


def _leaves(cell: Any) -> int:
    return sum(_leaves(child) for child in cell.children) if cell.children else 1
