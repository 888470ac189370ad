"""The device map: cell trees and running jobs become rows of tiles and a table.

A device is drawn as part of its cell. Neighbours become one tile only if they are one complete
cell: an allocation that fills the cell, or a free cell. Two free devices of different cells are
two tiles, which shows fragmentation (design, section 4).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal

from django.utils.translation import gettext as _

from portal.i18n import word
from portal.web.components import words
from portal.web.components.mapvalues import (
    DeviceMap,
    DeviceNow,
    LegendItem,
    MapCell,
    MapGroup,
    MapGuest,
    MapNode,
    MapOccupant,
    NodeTile,
    Notch,
    Rack,
    TableRow,
    Tile,
    TileKind,
)
from portal.web.components.states import job_state, node_state
from tenants.viewers import ANOTHER_TENANT

SQUARES_ABOVE: Final = 40
DOTS_ABOVE: Final = 250
NAME_FROM_DEVICES: Final = 4
CATEGORIES: Final = 8
OVERFLOW_CATEGORY: Final = 6
_LOWEST, _HIGHEST = 15, 55
"""Height of the strip of a guest that never or always runs, in percent of its tile."""
UTILISATION_STEPS: Final = (0.10, 0.30, 0.50, 0.70, 0.90)


@dataclass(slots=True)
class _Drawing:
    """Results collected during the walk over the trees."""

    tenants: Mapping[str, int]
    in_words: bool = False
    seen_tenants: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, None] = field(default_factory=dict)
    table: list[TableRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNode:
    """One node of a map, drawn separately, so that it can be cached while others change.

    Attributes:
        shape: equal for nodes with the same numbering of devices.
        numbers: the numbering of devices.
        tenants: categories of the tenants with devices here.
        kinds: kinds of tiles, for the legend.
        table: the drawing as a text table, if requested.
    """

    rack: str
    row: NodeTile
    shape: tuple[object, ...]
    numbers: MapGroup
    tenants: Mapping[str, int]
    kinds: tuple[str, ...]
    table: tuple[TableRow, ...]


def device_map(
    nodes: Sequence[MapNode],
    *,
    tenants: Sequence[str],
    colour: str = "tenant",
    in_words: bool = True,
) -> DeviceMap:
    """Draw ``nodes``.

    Args:
        nodes: nodes in order of display.
        tenants: names in the order of creation, which determines their categories.
        colour: initial meaning of colour: ``state``, ``utilisation``, ``tenant`` or ``job``.
        in_words: whether to create the table with the same facts too.
    """
    drawn = [draw_node(node, tenants=tenants, in_words=in_words) for node in nodes]
    return map_of(drawn, colour=colour)


def draw_node(node: MapNode, *, tenants: Sequence[str], in_words: bool) -> DrawnNode:
    """Draw one node, as input of ``map_of``."""
    drawing = _Drawing(tenants=tenant_categories(tenants), in_words=in_words)
    row = _row(node, drawing)
    return DrawnNode(
        rack=node.rack,
        row=row,
        shape=_shape(node.tree),
        numbers=_numbers(node.tree),
        tenants=drawing.seen_tenants,
        kinds=tuple(drawing.kinds),
        table=tuple(drawing.table),
    )


def map_of(nodes: Sequence[DrawnNode], *, colour: str) -> DeviceMap:
    """Combine drawn nodes into a map, in order of display."""
    racks: dict[str, list[DrawnNode]] = {}
    tenants: dict[str, int] = {}
    kinds: dict[str, None] = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(node)
        tenants.update(node.tenants)
        kinds.update(dict.fromkeys(node.kinds))
    return DeviceMap(
        racks=tuple(_rack(name, members) for name, members in racks.items()),
        table=tuple(line for node in nodes for line in node.table),
        density=_density(len(nodes)),
        tenants=tuple(LegendItem(name=n, category=c) for n, c in tenants.items()),
        kinds=tuple(kinds),
        devices=sum(node.row.devices for node in nodes),
        colour=colour,
    )


def tenant_categories(tenants: Iterable[str]) -> dict[str, int]:
    """Return the category by tenant in order of creation; from the ninth on slate."""
    numbered = enumerate(tenants, start=1)
    return {
        name: (number if number <= CATEGORIES else OVERFLOW_CATEGORY) for number, name in numbered
    }


def utilisation_step(share: float) -> int:
    """Return the step of a share on the amount ramp, 0 to 5 (10, 30, 50, 70, 90 %)."""
    return sum(share >= limit for limit in UTILISATION_STEPS)


def node_tiles(node: MapNode, *, tenants: Sequence[str]) -> MapGroup:
    """Draw the tiles of one node, one per device, for the small strip of a table row."""
    drawing = _Drawing(tenants=tenant_categories(tenants))
    return _one_by_one(node.tree, node, drawing)


def _density(nodes: int) -> Literal["", "square", "dot"]:
    if nodes > DOTS_ABOVE:
        return "dot"
    return "square" if nodes > SQUARES_ABOVE else ""


def _rack(name: str, nodes: Sequence[DrawnNode]) -> Rack:
    shapes = {node.shape for node in nodes}
    index = nodes[0].numbers if len(shapes) == 1 else None
    return Rack(name=name, index=index, rows=tuple(node.row for node in nodes))


@lru_cache(maxsize=4096)
def _shape(cell: MapCell) -> tuple[object, ...]:
    return tuple(_shape(child) for child in cell.children) or (cell.device,)


def _row(node: MapNode, drawing: _Drawing) -> NodeTile:
    look = node_state(node.state)
    out = sum(device.condition == "unhealthy" for device in node.devices.values())
    calm = node.state == "ready"
    icon, tone = ("warning", "") if calm and out else ("" if calm else look.icon, look.tone)
    summary = _("%(name)s: %(state)s") % {"name": node.name, "state": look.word.lower()}
    if out:
        summary = _("%(node)s, %(devices)s unhealthy") % {
            "node": summary,
            "devices": words.plural(out, "device", "devices"),
        }
    return NodeTile(
        name=node.name,
        url=node.url,
        icon=icon,
        tone="" if calm else tone,
        summary=summary,
        devices=len(node.tree.leaves),
        cells=_as_group(_part(node.tree, node, drawing), node.tree),
    )


def _as_group(part: Tile | MapGroup, cell: MapCell) -> MapGroup:
    if isinstance(part, MapGroup):
        return part
    return MapGroup(width=len(cell.leaves), gap=1, parts=(part,))


def _gap(cell: MapCell) -> int:
    return min(3, max(child.height for child in cell.children) + 1)


@lru_cache(maxsize=4096)
def _numbers(cell: MapCell) -> MapGroup:
    parts: tuple[Tile | MapGroup, ...]
    if not cell.children:
        parts = (Tile(width=1, kind="free", title="", text=str(cell.device)),)
        return MapGroup(width=1, gap=1, parts=parts)
    parts = tuple(
        _numbers(child)
        if child.children
        else Tile(width=1, kind="free", title="", text=str(child.device))
        for child in cell.children
    )
    return MapGroup(width=len(cell.leaves), gap=_gap(cell), parts=parts)


def _part(cell: MapCell, node: MapNode, drawing: _Drawing) -> Tile | MapGroup:
    keys = {_key(node.devices.get(leaf, DeviceNow()), node) for leaf in cell.leaves}
    if len(keys) <= 1 or not cell.children:
        return _tile(cell, node, drawing)
    parts = tuple(_part(child, node, drawing) for child in cell.children)
    return MapGroup(width=len(cell.leaves), gap=_gap(cell), parts=parts)


def _one_by_one(cell: MapCell, node: MapNode, drawing: _Drawing) -> MapGroup:
    parts = tuple(
        _one_by_one(child, node, drawing) if child.children else _tile(child, node, drawing)
        for child in cell.children or (cell,)
    )
    gap = _gap(cell) if cell.children else 1
    return MapGroup(width=len(cell.leaves), gap=gap, parts=parts)


def _key(device: DeviceNow, node: MapNode) -> tuple[str, str]:
    """Return the key by which devices of one cell are merged into a tile."""
    kind = _kind(device, node)
    occupant = device.occupant
    return kind, occupant.allocation if occupant and kind in {"used", "other", "reserved"} else ""


def _kind(device: DeviceNow, node: MapNode) -> TileKind:
    occupant = device.occupant
    if device.condition == "unhealthy":
        return "unhealthy"
    if occupant is None and node.state == "down":
        return "unhealthy"
    if occupant is not None and occupant.reserved:
        return "reserved"
    if occupant is not None:
        return "used" if occupant.job_id is not None else "other"
    off = device.condition == "cordoned" or node.state in {"cordoned", "draining"}
    return "cordoned" if off else "free"


def _tile(cell: MapCell, node: MapNode, drawing: _Drawing) -> Tile:
    shown = [node.devices.get(leaf, DeviceNow()) for leaf in cell.leaves]
    first = shown[0] if shown else DeviceNow()
    kind = _kind(first, node)
    drawing.kinds.setdefault(_legend_kind(kind, first.occupant))
    use = _mean([device.utilisation for device in shown])
    if drawing.in_words:
        row = _table_row(cell, node, kind, first.occupant, use)
        drawing.table.append(replace(row, guests=tuple(_guests_in_words(cell, node))))
    if first.occupant is None or kind == "unhealthy":
        return _empty_tile(cell, node, kind)
    tile = _occupied_tile(node, kind, first.occupant, width=len(shown), use=use, drawing=drawing)
    if not any(device.guests for device in shown):
        return tile
    drawing.kinds.setdefault("guest")
    guests = "; ".join(_guests_in_words(cell, node))
    return replace(
        tile,
        title=_("%(title)s; %(guests)s") % {"title": tile.title, "guests": guests},
        notches=tuple(_notches(shown, drawing)),
    )


def _notches(devices: Sequence[DeviceNow], drawing: _Drawing) -> Iterator[Notch]:
    """Yield a strip for each guest, next to each other in the part of their device."""
    part = 100 / len(devices)
    for place, device in enumerate(devices):
        for number, guest in enumerate(device.guests):
            category = drawing.tenants.get(guest.tenant, OVERFLOW_CATEGORY)
            if guest.tenant:
                drawing.seen_tenants.setdefault(guest.tenant, category)
            width = part / len(device.guests)
            yield Notch(
                x=round(place * part + number * width, 2),
                width=round(width, 2),
                height=round(_LOWEST + (_HIGHEST - _LOWEST) * (guest.open or 0.0), 1),
                state=guest.state,
                tenant=category if guest.tenant else None,
            )


def _guests_in_words(cell: MapCell, node: MapNode) -> Iterator[str]:
    for leaf in cell.leaves:
        for guest in node.devices.get(leaf, DeviceNow()).guests:
            yield _guest_in_words(leaf, guest)


def _guest_in_words(leaf: int, guest: MapGuest) -> str:
    who = words.tenant(guest.tenant or ANOTHER_TENANT)
    facts = [word(guest.state or "unknown")]
    if guest.open is not None:
        facts.append(_("open for %(share)s of the time") % {"share": words.percent(guest.open)})
    if guest.tier:
        facts[0] = _("suspended (%(tier)s)") % {"tier": guest.tier}
    if guest.turn_seconds:
        facts.append(_("turns of %(time)s") % {"time": words.duration(guest.turn_seconds)})
    if guest.holder_tier:
        facts.append(_("holder suspended (%(tier)s)") % {"tier": guest.holder_tier})
    facts.append(f"{guest.mode}: {guest.limits}")
    values = {
        "index": leaf,
        "who": who if guest.job_id is None else f"{guest.job_id} {guest.name}",
        "facts": _(", ").join(facts),
    }
    if guest.is_peer:
        return _("device %(index)s: paired with %(who)s (%(facts)s)") % values
    return _("device %(index)s: guest %(who)s (%(facts)s)") % values


def _legend_kind(kind: TileKind, occupant: MapOccupant | None) -> str:
    if occupant is not None and occupant.borrowed:
        return "borrowed"
    return "used" if kind == "other" and occupant is not None and occupant.tenant else kind


def _empty_tile(cell: MapCell, node: MapNode, kind: TileKind) -> Tile:
    width = len(cell.leaves)
    text = {"free": _("%(width)s free") % {"width": width} if width > 1 else "1"}.get(kind, "")
    title = _empty_title(cell, kind) % {
        "node": node.name,
        "devices": words.plural(width, "device", "devices"),
        "level": word(cell.level),
    }
    return Tile(width=width, kind=kind, title=title, text=text, url=node.url)


def _empty_title(cell: MapCell, kind: TileKind) -> str:
    if kind == "unhealthy":
        return _("%(node)s: %(devices)s unhealthy")
    if kind == "cordoned":
        return _("%(node)s: %(devices)s unavailable (cordoned)")
    if len(cell.leaves) > 1:
        return _("%(node)s: %(devices)s idle, a complete %(level)s")
    return _("%(node)s: %(devices)s idle")


def _occupied_tile(
    node: MapNode,
    kind: TileKind,
    occupant: MapOccupant,
    *,
    width: int,
    use: float | None,
    drawing: _Drawing,
) -> Tile:
    category = None
    if occupant.tenant:
        category = drawing.tenants.get(occupant.tenant, OVERFLOW_CATEGORY)
        drawing.seen_tenants.setdefault(occupant.tenant, category)
    mine = occupant.job_id is not None
    return Tile(
        width=width,
        kind=kind,
        title=_title(node, width, occupant, use),
        text=str(occupant.job_id)
        if mine
        else (words.tenant(_tenant(occupant)) if width > 1 else ""),
        name=occupant.name if mine and width >= NAME_FROM_DEVICES else "",
        url=occupant.url if mine else "",
        borrowed=occupant.borrowed,
        tenant=category,
        job=_job_category(occupant.job_id),
        tone=job_state(occupant.state).tone,
        utilisation=None if use is None else utilisation_step(use),
    )


def _job_category(job_id: int | None) -> int | None:
    """Return categories by order of creation: the end of other jobs changes no colour."""
    return None if job_id is None else (job_id - 1) % CATEGORIES + 1


def _title(node: MapNode, width: int, occupant: MapOccupant, use: float | None) -> str:
    facts = {
        "node": node.name,
        "devices": words.plural(width, "device", "devices"),
        "what": _("a job of %(tenant)s") % {"tenant": words.tenant(_tenant(occupant))},
    }
    if occupant.job_id is not None:
        who = " · ".join(part for part in (occupant.user, occupant.virtual_cluster) if part)
        facts["what"] = f"{occupant.job_id} {occupant.name}".strip() + _(", ") + who
    title = _("%(node)s, %(devices)s: %(what)s") % facts
    marks = [] if occupant.job_id is None else [job_state(occupant.state).word.lower()]
    if occupant.borrowed and occupant.job_id is not None:
        marks.append(_("borrowed"))
    if use is not None:
        marks.append(_("%(share)s used") % {"share": words.percent(use)})
    return _(", ").join((title, *marks))


def _tenant(occupant: MapOccupant) -> str:
    return occupant.tenant or ANOTHER_TENANT


def _table_row(
    cell: MapCell, node: MapNode, kind: TileKind, occupant: MapOccupant | None, use: float | None
) -> TableRow:
    seen = occupant if kind in {"used", "other", "reserved"} else None
    mine = seen is not None and seen.job_id is not None
    state = (
        str(job_state(seen.state).word)
        if seen and mine
        else word("Used" if kind == "other" else kind.capitalize())
    )
    return TableRow(
        node=node.name,
        node_url=node.url,
        devices=_indices(cell.leaves),
        level=cell.level,
        state=state,
        tenant=_tenant(seen) if seen else "",
        job=f"{seen.job_id} {seen.name}" if seen and mine else "",
        job_url=seen.url if seen and mine else "",
        use="" if use is None else words.percent(use),
    )


def _indices(leaves: Sequence[int]) -> str:
    if len(leaves) > 1 and list(leaves) == list(range(leaves[0], leaves[-1] + 1)):
        return f"{leaves[0]} {words.DASH} {leaves[-1]}"
    return ", ".join(str(leaf) for leaf in leaves)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
