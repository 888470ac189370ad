"""Nodes: the list, one node with what each side says of it, and holding it back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.db.models import Model
from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from portal.web.cluster_drawing import map_node, tenants_in_order
from portal.web.components import words
from portal.web.components.mapvalues import Group
from portal.web.components.stats import Stat
from portal.web.devicemap import device_map, node_tiles
from portal.web.formfaults import error_text
from portal.web.overview import COLOURS, query_of_page
from portal.web.viewing import PageRequest, page
from scheduling.selectors.nodes import NodeDetail, NodeRow, TruthRow, list_nodes, node_detail
from scheduling.services import nodes as services
from tenants.errors import DomainError, InvalidError
from tenants.roles import Permission

MOST_ROWS: Final = 200
STATES: Final = ("ready", "suspect", "down", "cordoned", "draining")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownNode:
    """A row of the list: the node, its devices as a strip, and what stands below its state."""

    row: NodeRow
    strip: Group
    reason: str
    truth: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthGroup:
    """Devices of which all sides say the same thing."""

    devices: str
    said: TruthRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something an admin does to a node.

    Attributes:
        verb: as the address and the button say it.
        word: as the button says it.
        says: what will happen.
        needs_reason: a reason must be given.
        done: what the toast says.
        act: the service.
    """

    verb: str
    word: str
    says: str
    needs_reason: bool
    done: str
    act: Callable[..., Model]


ACTS: Final = {
    act.verb: act
    for act in (
        Act(
            verb="cordon",
            word="Cordon",
            says="Nothing new is placed on it. What runs there goes on.",
            needs_reason=True,
            done="takes no new jobs.",
            act=services.cordon_node,
        ),
        Act(
            verb="drain",
            word="Drain",
            says="Nothing new is placed on it. What runs there is asked to save its work, leaves, "
            "and runs again elsewhere. Work that is not saved within the grace period is lost.",
            needs_reason=True,
            done="empties itself and then takes no new jobs.",
            act=services.drain_node,
        ),
        Act(
            verb="uncordon",
            word="Use again",
            says="New jobs may be placed on it with the next round.",
            needs_reason=False,
            done="takes new jobs again.",
            act=services.uncordon_node,
        ),
        Act(
            verb="declare-dead",
            word="Declare dead",
            says="Its jobs count as lost and run again elsewhere. Do this only when the machine "
            "is off: a job that still runs there would run twice.",
            needs_reason=True,
            done="is declared dead; its jobs may run elsewhere.",
            act=services.declare_node_dead,
        ),
    )
}


@page
def nodes(asked: PageRequest) -> HttpResponseBase:
    """The list, or its rows alone."""
    query = query_of_page(asked.http)
    may = asked.viewer.can(Permission.MANAGE_NODES)
    everything = list_nodes(asked.viewer)
    filters = {name: query.get(name, "")[:100] for name in ("state", "type", "q")}
    matching = [row for row in everything if _matches(row, filters)]
    cursor = query.get("cursor", "")
    later = [row for row in matching if row.name > cursor]
    shown = later[:MOST_ROWS]
    tenants = tenants_in_order(asked.viewer)
    context = {
        "rows": [_shown(row, tenants, may=may) for row in shown],
        "count": len(matching),
        "next_cursor": shown[-1].name if len(later) > len(shown) else "",
        "filters": filters,
        "states": STATES,
        "types": sorted({row.view.device_type for row in everything if row.view.device_type}),
        "can_manage": may,
        "stats": _stats(everything, asked.now),
        "strip_colour": "tenant",
        "is_empty": not everything,
    }
    if asked.wants_part:
        return asked.render("nodes/_swap.html", context)
    return asked.render("nodes/nodes.html", context)


@page
def node(asked: PageRequest, node_id: int) -> HttpResponseBase:
    """One node, or its live part."""
    template = "nodes/_node.html" if asked.wants_part else "nodes/node.html"
    return asked.render(template, node_context(asked, node_id))


@page
def act_on_node(asked: PageRequest, node_id: int, verb: str) -> HttpResponseBase:
    """Hold a node back or use it again; asks for the reason where none came."""
    act = ACTS.get(verb)
    if act is None:
        raise Http404
    detail = node_detail(asked.viewer, node_id)
    asked.viewer.require(Permission.MANAGE_NODES, what="the node")
    error = ""
    if asked.http.method == "POST":
        try:
            act.act(
                viewer=asked.viewer,
                node_id=node_id,
                reason=asked.http.POST.get("reason", "").strip(),
                now=asked.now,
            )
        except InvalidError as refused:
            error = error_text(refused) if "asked" in asked.http.POST else ""
        except DomainError as refused:
            messages.error(asked.http, error_text(refused))
            return redirect("node", node_id)
        else:
            messages.success(asked.http, f"{detail.row.name} {act.done}")
            return redirect(_back(asked, node_id))
    return asked.render(
        "nodes/act.html",
        {
            "detail": detail,
            "act": act,
            "error": error,
            "reason": asked.http.POST.get("reason", ""),
        },
    )


@page
def remove_node(asked: PageRequest, node_id: int) -> HttpResponseBase:
    """Take a node out of the cluster."""
    detail = node_detail(asked.viewer, node_id)
    if asked.http.method == "POST":
        try:
            services.remove_node(viewer=asked.viewer, node_id=node_id, now=asked.now)
        except DomainError as refused:
            messages.error(asked.http, error_text(refused))
            return redirect("node", node_id)
        messages.success(asked.http, f"{detail.row.name} is removed; its history stays.")
    return redirect("nodes")


def node_context(asked: PageRequest, node_id: int) -> dict[str, Any]:
    """Everything that the page of a node shows."""
    detail = node_detail(asked.viewer, node_id)
    query = query_of_page(asked.http)
    colour = query.get("colour", "")
    tenants = tenants_in_order(asked.viewer)
    drawn = map_node(detail.row.view)
    return {
        "detail": detail,
        "row": detail.row,
        "stats": _node_stats(detail.row, asked.now),
        "reason": state_reason(detail.row, may=detail.can_manage),
        "map": device_map(
            [drawn], tenants=tenants, colour=colour if colour in COLOURS else "tenant"
        ),
        "truth": truth_groups(detail.truth),
        "disagreements": sum(not row.agrees for row in detail.truth),
        "acts": acts_for(detail) if detail.can_manage else (),
        "shape": _shape_words(detail),
        "is_known": detail.row.probed_at is not None,
    }


def acts_for(detail: NodeDetail) -> tuple[Act, ...]:
    """What makes sense for a node as it is now."""
    held, contact = detail.row.held, detail.row.contact
    verbs = []
    if held:
        verbs.append("uncordon")
    if held != "cordoned":
        verbs.append("cordon")
    if held != "draining" and detail.row.in_use:
        verbs.append("drain")
    if contact != "ready" and detail.declared_dead_at is None:
        verbs.append("declare-dead")
    return tuple(ACTS[verb] for verb in verbs)


def truth_groups(rows: Sequence[TruthRow]) -> tuple[TruthGroup, ...]:
    """Neighbouring devices of which all sides say the same, as one line."""
    groups: list[tuple[list[int], TruthRow]] = []
    for row in rows:
        last = groups[-1] if groups else None
        if last is not None and _said(last[1]) == _said(row):
            last[0].append(row.device_index)
        else:
            groups.append(([row.device_index], row))
    return tuple(TruthGroup(devices=_span(indices), said=row) for indices, row in groups)


def _said(row: TruthRow) -> tuple[object, ...]:
    return row.job_id, row.database, row.runner, row.device, row.verdict


def _span(indices: Sequence[int]) -> str:
    first, last = indices[0], indices[-1]
    if len(indices) > 1 and last - first == len(indices) - 1:
        return f"{first} {words.DASH} {last}"
    return ", ".join(str(index) for index in indices)


def _back(asked: PageRequest, node_id: int) -> str:
    if asked.http.POST.get("from") == "list":
        return reverse("nodes")
    return reverse("node", args=[node_id])


def _matches(row: NodeRow, filters: dict[str, str]) -> bool:
    if filters["state"] and row.state != filters["state"]:
        return False
    if filters["type"] and row.view.device_type != filters["type"]:
        return False
    text = filters["q"].strip().casefold()
    labels = (f"{key}={value}" for key, value in row.labels.items())
    return not text or any(
        text in part.casefold() for part in (row.name, row.view.rack, row.host, *labels)
    )


def _shown(row: NodeRow, tenants: Sequence[str], *, may: bool) -> ShownNode:
    held, confirmed = row.in_use, row.running
    truth = {True: "agree", False: "disagree", None: "not yet known"}[row.agrees]
    if not held and not confirmed and row.agrees:
        truth = "agree"
    return ShownNode(
        row=row,
        strip=node_tiles(map_node(row.view), tenants=tenants),
        reason=_reason(row, may=may),
        truth=truth,
    )


def state_reason(row: NodeRow, *, may: bool) -> str:
    """Why the node is not ready; reasons of the connection may name addresses."""
    is_told = may or (row.held and row.contact == "ready")
    return row.view.state_reason if row.state != "ready" and is_told else ""


def _reason(row: NodeRow, *, may: bool) -> str:
    """What stands below the state in the list."""
    out = len(row.view.devices) - row.healthy
    return state_reason(row, may=may) or (
        f"{words.plural(out, 'device', 'devices')} out" if out else ""
    )


def _stats(rows: Sequence[NodeRow], now: datetime) -> tuple[Stat, ...]:
    by_state = {state: sum(row.state == state for row in rows) for state in STATES}
    said = [f"{words.count(number)} {state}" for state, number in by_state.items() if number]
    devices = sum(len(row.view.devices) for row in rows)
    healthy = sum(row.healthy for row in rows)
    out = [row.name for row in rows if row.healthy < len(row.view.devices)]
    wrong = [row.name for row in rows if row.agrees is False]
    heard = [(row.last_contact_at, row.name, row.state) for row in rows if row.last_contact_at]
    oldest = min(heard, default=None)
    return (
        Stat(label="Nodes", value=words.count(len(rows)), context=", ".join(said)),
        Stat(
            label="Healthy devices",
            value=words.count(healthy),
            unit=f"of {words.count(devices)}",
            context=f"out on {_some(out)}" if out else "all work",
        ),
        Stat(
            label="Nodes that disagree",
            value=words.count(len(wrong)),
            context=_some(wrong) if wrong else "database and runners say the same",
            tone="bad" if wrong else "",
        ),
        Stat(
            label="Longest without a word",
            value=words.duration((now - oldest[0]).total_seconds()) if oldest else "",
            context=f"{oldest[1]}: {oldest[2]}" if oldest else "no node has answered yet",
        ),
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - 2
    return ", ".join(names[:2]) + (f" and {more} more" if more > 0 else "")


def _node_stats(row: NodeRow, now: datetime) -> tuple[Stat, ...]:
    devices = len(row.view.devices)
    heard = row.last_contact_at
    return (
        Stat(
            label="Devices in use",
            value=words.count(row.in_use),
            unit=f"of {words.count(devices)}",
            context=f"{words.count(row.healthy)} healthy" if devices else "not probed yet",
        ),
        Stat(
            label="Jobs here",
            value=words.count(row.jobs),
            context=f"{words.plural(row.running, 'rank', 'ranks')} confirmed by the runner",
        ),
        Stat(
            label="CPUs and memory",
            value=words.count(row.cpus) if row.cpus else "",
            unit=f"cores, {words.file_size(row.memory_bytes)}",
            context="with a container engine" if row.has_docker else "no container engine",
        ),
        Stat(
            label="Last heard",
            value=words.duration((now - heard).total_seconds()) if heard else "",
            unit="ago",
            context="it has not answered yet" if heard is None else f"contact is {row.contact}",
        ),
    )


def _shape_words(detail: NodeDetail) -> str:
    parts: list[str] = []
    here = detail.row.view.tree
    while here.children:
        level = {"pcie": "switch"}.get(here.level, here.level)
        parts.append(f"{level} {_leaves(here)}")
        here = here.children[0]
    return ", ".join(parts)


def _leaves(cell: Any) -> int:
    return sum(_leaves(child) for child in cell.children) if cell.children else 1
