"""Proposed moves on the page *Fragmentation*: costs, and the cell map before and after."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.web.cluster_drawing import map_node
from portal.web.components.mapvalues import DeviceNow, MapCell, MapGroup, MapNode, MapOccupant
from portal.web.devicemap import draw_node
from portal.web.forms import error_text
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.cluster import node_views
from scheduling.clusters.queries.cluster_facts import cluster_facts
from scheduling.estimates.queries import MovesView, MoveView, moves_view
from scheduling.estimates.services.moves import carry_out_moves
from scheduling.jobs.queries.jobs import JobRow, rows_of_jobs
from tenants.errors import DomainError

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    """One move with its job; the job is None if it has been removed."""

    move: MoveView
    job: JobRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """One node with its devices before and after the moves."""

    name: str
    devices: int
    before: MapGroup
    after: MapGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesRow:
    """A proposal as the page shows it; gain and cost in device-hours."""

    proposal: MovesView
    job: JobRow | None
    gain: float
    cost: float
    moves: tuple[MoveRow, ...]
    nodes: tuple[NodeChange, ...]


def moves_rows(asked: PageRequest, tenants: Sequence[str]) -> tuple[MovesRow, ...]:
    """Return the proposals of the newest forecast for a node manager."""
    found = moves_view(asked.viewer)
    if not found:
        return ()
    ids = {one.job_id for one in found} | {move.job_id for one in found for move in one.moves}
    jobs = rows_of_jobs(asked.viewer, sorted(ids))
    nodes = {view.name: map_node(view) for view in node_views(cluster_facts(), asked.viewer)}
    return tuple(
        MovesRow(
            proposal=one,
            job=jobs.get(one.job_id),
            gain=one.gain / HOUR,
            cost=one.cost / HOUR,
            moves=tuple(MoveRow(move=move, job=jobs.get(move.job_id)) for move in one.moves),
            nodes=tuple(_changes(one, jobs, nodes, tenants)),
        )
        for one in found
    )


@require_POST
@page
def carry_out(asked: PageRequest, job_id: int) -> HttpResponse:
    """Preempt the jobs of a proposal, and return to the page."""
    sent = asked.http.POST.get("round", "")
    number = int(sent) if sent.isascii() and sent.isdigit() and len(sent) < 16 else 0
    try:
        carry_out_moves(viewer=asked.viewer, job_id=job_id, round_number=number, now=asked.now)
        messages.success(asked.http, _("The jobs got a notice to release their devices."))
    except DomainError as error:
        messages.error(asked.http, error_text(error))
    return redirect("fragmentation")


def _changes(
    proposal: MovesView,
    jobs: Mapping[int, JobRow],
    nodes: Mapping[str, MapNode],
    tenants: Sequence[str],
) -> Iterator[NodeChange]:
    """Yield the nodes on which an occupant changes, in order of their names."""
    leaving = {address for move in proposal.moves for address in move.before}
    coming = dict.fromkeys(proposal.after, proposal.job_id)
    for move in proposal.moves:
        coming |= dict.fromkeys(move.after, move.job_id)
    for name in sorted(nodes):
        node = nodes[name]
        devices = dict(node.devices)
        for address, index in _devices(node.tree):
            now = devices.get(index, DeviceNow())
            if address in coming:
                devices[index] = replace(now, occupant=_occupant(coming[address], jobs))
            elif address in leaving:
                devices[index] = replace(now, occupant=None)
        if devices != node.devices:
            yield NodeChange(
                name=name,
                devices=len(devices),
                before=_drawn(node, tenants),
                after=_drawn(replace(node, devices=devices), tenants),
            )


def _drawn(node: MapNode, tenants: Sequence[str]) -> MapGroup:
    """Draw the cells of a node: whole cells are one tile, as on the map."""
    return draw_node(node, tenants=tenants, in_words=False).row.cells


def _devices(cell: MapCell) -> Iterator[tuple[str, int]]:
    """Yield the address and index of each device below a cell."""
    if cell.device is not None:
        yield cell.address, cell.device
    for child in cell.children:
        yield from _devices(child)


def _occupant(job_id: int, jobs: Mapping[int, JobRow]) -> MapOccupant:
    job = jobs.get(job_id)
    if job is None:
        return MapOccupant(allocation=f"moved-{job_id}", tenant="", job_id=job_id)
    return MapOccupant(
        allocation=f"moved-{job_id}",
        tenant=job.tenant,
        job_id=job_id,
        name=job.name,
        user=job.owner,
        virtual_cluster=job.virtual_cluster,
    )
