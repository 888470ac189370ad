"""Values of the device map: cells, occupants and nodes as input, tiles and racks as output."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Condition = Literal["ok", "unhealthy", "cordoned"]
TileKind = Literal["used", "other", "free", "reserved", "unhealthy", "cordoned"]


@dataclass(frozen=True, kw_only=True)
class MapCell:
    """A cell of a node: its level, its address, its sub-cells; a leaf has a device index."""

    level: str
    address: str = ""
    children: tuple["MapCell", ...] = ()
    device: int | None = None

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Device indices below this cell, in order."""
        if not self.children:
            return () if self.device is None else (self.device,)
        return tuple(leaf for child in self.children for leaf in child.leaves)

    @cached_property
    def height(self) -> int:
        """Number of levels below; 0 for a device."""
        return 1 + max(child.height for child in self.children) if self.children else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOccupant:
    """The user of a device, as far as the viewer may see it.

    Attributes:
        allocation: opaque id of the allocation, never shown.
        tenant: name of the tenant; empty when the viewer may not see it.
        job_id: None when the viewer may not see the job; then only the tenant is shown.
        name: name of the job.
        user: submitter of the job.
        virtual_cluster: virtual cluster of the job.
        state: job state.
        borrowed: whether it runs outside its guarantee.
        reserved: the device is reserved, not yet in use.
        url: address of the job's page.
    """

    allocation: str
    tenant: str
    job_id: int | None = None
    name: str = ""
    user: str = ""
    virtual_cluster: str = ""
    state: str = "running"
    borrowed: bool = False
    reserved: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapGuest:
    """A guest of a device, as far as the viewer may see it.

    Attributes:
        tenant: name of the tenant; empty when the viewer may not see it.
        job_id: None when the viewer may not see the job.
        open: share of the time in which it may run, in [0, 1]; None if unknown.
        state: ``open``, ``closed``, ``frozen``, ``suspended``, ``leaving``, or empty if unknown.
        mode: sharing mode of the device.
        limits: how memory and compute are limited, in words.
        is_peer: whether it is an equal of the holder.
        turn_seconds: length of a turn; 0 without turns.
        tier, holder_tier: how it and the holder are suspended now; empty while they work.
    """

    tenant: str
    job_id: int | None
    name: str
    open: float | None
    state: str
    mode: str
    limits: str
    is_peer: bool = False
    turn_seconds: float = 0.0
    tier: str = ""
    holder_tier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNow:
    """One device: condition, occupant, guests, and its utilisation in [0, 1] if known."""

    condition: Condition = "ok"
    occupant: MapOccupant | None = None
    utilisation: float | None = None
    guests: tuple[MapGuest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MapNode:
    """A node with its cell tree and devices by index."""

    name: str
    tree: MapCell
    devices: Mapping[int, DeviceNow]
    rack: str = ""
    state: str = "ready"
    device_type: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notch:
    """A guest as a strip at the foot of a tile; numbers are percent of the tile.

    Attributes:
        state: as in ``MapGuest``.
        tenant: category of its tenant; None when the viewer may not see it.
    """

    x: float
    width: float
    height: float
    state: str
    tenant: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A whole cell as one drawn tile."""

    width: int
    kind: TileKind
    title: str
    text: str = ""
    name: str = ""
    url: str = ""
    borrowed: bool = False
    tenant: int | None = None
    job: int | None = None
    tone: str = ""
    utilisation: int | None = None
    notches: tuple[Notch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MapGroup:
    """Adjacent tiles and groups; ``gap`` 1, 2 or 3 means 2, 4 or 8 px."""

    width: int
    gap: int
    parts: tuple["Tile | MapGroup", ...]

    @property
    def is_group(self) -> bool:
        """Return True: templates cannot check a type."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A tile as text: the table row of the drawing."""

    node: str
    node_url: str
    devices: str
    level: str
    state: str
    tenant: str
    job: str
    job_url: str
    use: str
    guests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTile:
    """One node: its name, its state, its tiles."""

    name: str
    url: str
    icon: str
    tone: str
    summary: str
    devices: int
    cells: MapGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """Nodes of a rack; ``index`` is the numbering if all have the same shape."""

    name: str
    index: MapGroup | None
    rows: tuple[NodeTile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendItem:
    """A name and its category."""

    name: str
    category: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMap:
    """Input of the map's template."""

    racks: tuple[Rack, ...]
    table: tuple[TableRow, ...]
    density: Literal["", "square", "dot"]
    tenants: tuple[LegendItem, ...]
    kinds: tuple[str, ...]
    devices: int
    colour: str = "tenant"
