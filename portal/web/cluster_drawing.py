"""Conversion of cluster data from the selectors to drawings, names of levels, and charts."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.addresses import address, job_url, node_url
from portal.i18n import gettext_lazy, word
from portal.identity import Same
from portal.web.components import bars, words
from portal.web.components.mapvalues import (
    DeviceMap,
    DeviceNow,
    MapCell,
    MapGroup,
    MapGuest,
    MapNode,
    MapOccupant,
)
from portal.web.devicemap import DrawnNode, draw_node, map_of, node_tiles, tenant_categories
from scheduling.clusters.queries import cluster, occupancy
from scheduling.clusters.queries.shared_devices import GuestOnDevice
from scheduling.topology.current import CellView
from tenants.selectors import tenants_for
from tenants.viewers import ANOTHER_TENANT, Viewer
from workers.day import DayPoint
from workers.services.telemetry import current_readings

Guests = Mapping[int, tuple[GuestOnDevice, ...]]
"""Guests by device ID."""
NO_GUESTS: Final[Guests] = {}
Readings = Mapping[int, Sequence[float | None]]
"""Utilisation in [0, 1] by device index, by node id."""
PLURALS: Final = {"device": "devices", "socket": "sockets", "node": "nodes", "rack": "racks"}
Take = Callable[[DayPoint], float | None]
NOTHING: Final = gettext_lazy(
    "No data yet. Nodes report utilisation every minute; jobs that use tessera.train report "
    "efficiency."
)
FEW: Final = 6
LINES: Final[tuple[tuple[str, str, Take], ...]] = (
    ("in use", "text-3", lambda point: point.in_use),
    ("utilisation", "c1", lambda point: point.utilisation),
    ("efficiency", "text", lambda point: point.efficiency),
)


def tenants_in_order(viewer: Viewer) -> tuple[str, ...]:
    """Return the tenants that the viewer may see, each at its index in the order of creation.

    Other tenants leave an empty name, so that a tenant has one colour for everybody.
    """
    by_position = {tenant.position: tenant.name for tenant in tenants_for(viewer)}
    last = max(by_position, default=0)
    return tuple(by_position.get(position, "") for position in range(1, last + 1))


def utilisation_now(node_ids: Collection[int], *, now: datetime) -> Readings:
    """Return the utilisation of devices in the last minutes."""
    found = current_readings(node_ids=node_ids, now=now)
    return {node_id: shares_of(reading["utilisation"]) for node_id, reading in found.items()}


def shares_of(values: object) -> tuple[float | None, ...]:
    """Return utilisations as shares from 0 to 1."""
    if not isinstance(values, list):
        return ()
    return tuple(
        min(max(float(value), 0.0), 1.0) if isinstance(value, int | float) else None
        for value in values
    )


def drawn_cluster(
    nodes: tuple[cluster.NodeView, ...],
    readings: Readings,
    tenants: Sequence[str],
    *,
    colour: str,
    in_words: bool,
    guests: Guests = NO_GUESTS,
) -> DeviceMap:
    """Return the device map of all nodes; each drawing is cached while unchanged.

    Args:
        nodes: as the viewer may see them; other rights give another tuple.
        readings: utilisation now.
        tenants: names in the order of creation, as the viewer may see them.
        colour: initial meaning of colour.
        in_words: whether to create the table too.
        guests: guests by device ID, as the viewer may see them.
    """
    known = tuple(tenants)
    language = get_language()
    drawn = [
        _drawn(
            Same(node),
            tuple(readings.get(node.id, ())),
            known,
            in_words,
            language,
            _guests_of(node, guests),
        )
        for node in sorted(nodes, key=_by_rack)
    ]
    return map_of(drawn, colour=colour)


@lru_cache(maxsize=4096)
def _drawn(
    node: Same[cluster.NodeView],
    readings: tuple[float | None, ...],
    tenants: tuple[str, ...],
    in_words: bool,
    _language: str | None,
    guests: tuple[tuple[int, tuple[GuestOnDevice, ...]], ...] = (),
) -> DrawnNode:
    """Cache the drawing of a node; the language is a part of the key."""
    drawn = map_node(node.value, readings, dict(guests))
    return draw_node(drawn, tenants=tenants, in_words=in_words)


def _guests_of(
    node: cluster.NodeView, guests: Guests
) -> tuple[tuple[int, tuple[GuestOnDevice, ...]], ...]:
    """Return the guests of a node by device ID, as a key of the cache."""
    if not guests:
        return ()
    return tuple((device.id, guests[device.id]) for device in node.devices if device.id in guests)


def _by_rack(node: cluster.NodeView) -> tuple[bool, str]:
    """Sort key: racks by name, nodes without a rack last."""
    return node.rack == "", node.rack


def node_strip(
    node: cluster.NodeView, readings: Sequence[float | None], tenants: Sequence[str]
) -> MapGroup:
    """Draw the small strip of a node; cached while unchanged."""
    return _strip(Same(node), tuple(readings), tuple(tenants), get_language())


@lru_cache(maxsize=2048)
def _strip(
    node: Same[cluster.NodeView],
    readings: tuple[float | None, ...],
    tenants: tuple[str, ...],
    _language: str | None,
) -> MapGroup:
    drawn = map_node(node.value, readings)
    return node_tiles(drawn, tenants=tenants)


def map_node(
    node: cluster.NodeView,
    readings: Sequence[float | None] = (),
    guests: Guests = NO_GUESTS,
) -> MapNode:
    return MapNode(
        name=node.name,
        tree=cell(node.tree),
        devices={
            device.index: DeviceNow(
                condition="ok" if device.healthy else "unhealthy",
                occupant=occupant(device.occupant),
                utilisation=readings[device.index] if device.index < len(readings) else None,
                guests=tuple(map(_map_guest, guests.get(device.id, ()))),
            )
            for device in node.devices
        },
        rack=node.rack,
        state=node.state,
        device_type=node.device_type,
        url=node_url(node.id),
    )


def _map_guest(guest: GuestOnDevice) -> MapGuest:
    return MapGuest(
        tenant="" if guest.tenant == ANOTHER_TENANT else guest.tenant,
        job_id=guest.job_id,
        name=guest.name,
        open=guest.open,
        state=guest.state,
        mode=guest.mode,
        limits=limits_in_words(guest.memory_limit, guest.compute_limit),
        is_peer=guest.is_peer,
        turn_seconds=guest.turn_seconds,
        tier=guest.tier,
        holder_tier=guest.holder_tier,
    )


def limits_in_words(memory: str, compute: str) -> str:
    """Describe whether the limits of a sharing mode are enforced or cooperative."""
    return _("memory %(memory)s, compute %(compute)s") % {
        "memory": word(memory),
        "compute": word(compute),
    }


@lru_cache(maxsize=65536)
def cell(view: CellView) -> MapCell:
    """Build a cell tree for drawing; trees change with the topology only."""
    return MapCell(
        level=view.level,
        address=view.address,
        children=tuple(cell(child) for child in view.children),
        device=view.device,
    )


def occupant(holder: occupancy.Occupant | None) -> MapOccupant | None:
    """Convert the occupant of a device for drawing."""
    if holder is None:
        return None
    return MapOccupant(
        allocation=holder.allocation,
        tenant="" if holder.tenant == ANOTHER_TENANT else holder.tenant,
        job_id=holder.job_id,
        name=holder.name,
        user=holder.user,
        virtual_cluster=holder.virtual_cluster,
        state=holder.state,
        borrowed=holder.opportunistic,
        reserved=holder.reserved,
        url=job_url(holder.job_id),
    )


def vc_uses(
    uses: Iterable[cluster.VcUse], tenants: Sequence[str], *, linked: bool = True
) -> tuple[bars.VcBarUse, ...]:
    """Build the bars of virtual clusters, in the colours of their tenants."""
    categories = tenant_categories(tenants)
    return tuple(
        bars.VcBarUse(
            name=use.name,
            guarantee=use.guarantee,
            used=use.used,
            lent=use.lent,
            unhealthy=use.unhealthy,
            cordoned=use.cordoned,
            borrowed=use.borrowed,
            queued=use.queued,
            category=categories.get(use.tenant, 6),
            url=address("virtual-cluster", use.id) if linked else "",
            policy=use.policy,
        )
        for use in uses
    )


def level_word(level: str, count: int = 1) -> str:
    """Return the name of a level, or its plural form for ``count`` cells."""
    if count == 1:
        return word(level)
    if level in PLURALS:
        return word(PLURALS[level])
    return _("%(level)s cells") % {"level": word(level)}


def cells_in_words(count: int, device_type: str, level: str) -> str:
    """Format numbers of cells as ``4 A100 nodes``."""
    return _("%(count)s %(kind)s %(level)s") % {
        "count": words.count(count),
        "kind": device_type,
        "level": level_word(level, count),
    }


def day_figure(points: Sequence[DayPoint]) -> dict[str, Any]:
    """Build the figure in percent with its sentence; without data, it has no traces.

    Leading points without data are omitted, so that the data of a new cluster fills the chart.
    """
    points = _since_known(points)
    # A line needs two points; a marker shows a single one.
    mode = "lines" if len(points) > FEW else "lines+markers"
    traces = []
    for name, colour, take in LINES:
        shares = [take(point) for point in points]
        if any(share is not None for share in shares):
            traces.append(
                {
                    "x": [words.on_chart(point.at) for point in points],
                    "y": [None if share is None else round(100 * share, 1) for share in shares],
                    "name": word(name),
                    "type": "scatter",
                    "mode": mode,
                    "connectgaps": False,
                    "colour": colour,
                    **({"line": {"dash": "dot"}} if name == "in use" else {}),
                }
            )
    ticks = (0, 25, 50, 75, 100)
    axis = {
        "range": [0, 104],
        "tickvals": ticks,
        "ticktext": [words.percent(tick / 100) for tick in ticks],
    }
    return {"data": traces, "layout": {"yaxis": axis}, "summary": describe_day(points)}


def _since_known(points: Sequence[DayPoint]) -> Sequence[DayPoint]:
    """Return the points from the first known one, and at least the last hour."""
    first = next(
        (
            place
            for place, point in enumerate(points)
            if point.in_use or point.utilisation is not None or point.efficiency is not None
        ),
        len(points),
    )
    return points[max(0, min(first, len(points) - FEW)) :]


def describe_day(points: Sequence[DayPoint]) -> str:
    """Describe the chart in a sentence."""
    parts = []
    for name, _colour, take in LINES:
        known = [share for share in map(take, points) if share is not None]
        if known:
            mean = sum(known) / len(known)
            parts.append(
                _("%(name)s %(known)s now, %(mean)s on average")
                % {
                    "name": word(name),
                    "known": words.percent(known[-1]),
                    "mean": words.percent(mean),
                }
            )
    if not parts:
        return str(NOTHING)
    return _("%(sentence)s.") % {"sentence": _("; ").join(parts).capitalize()}
