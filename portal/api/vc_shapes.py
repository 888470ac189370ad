"""Request and response shapes of virtual clusters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, NotRequired, TypedDict, cast

from portal.api.bodies import Body, From, rounded
from scheduling.clusters.models import VC_COLUMNS, VcValues
from scheduling.clusters.queries.cluster import VcUse
from scheduling.clusters.queries.current_engine import FitRow
from scheduling.clusters.queries.recommendations import RecommendedShape
from scheduling.clusters.queries.vc_cells import VcCells, VcRoom
from scheduling.clusters.queries.virtual_clusters import VcDetail, VcRow
from scheduling.clusters.services.cluster_edits import CreateVc
from scheduling.core.cells.largest_gangs import LargestGang


class CellsIn(TypedDict):
    """``count`` cells of ``level`` (a cell type, or node, socket, ...) in ``chain``."""

    chain: str
    level: str
    count: int


class PinIn(TypedDict):
    """A pinned cell: its name, and the address of its physical cell."""

    name: str
    address: str


class ShadowIn(TypedDict):
    """A policy that decides each stored round without acting, optionally only `until` a time."""

    policy: str
    policy_args: dict[str, Any]
    until: NotRequired[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VcIn:
    """A new virtual cluster of a tenant with its guarantee."""

    name: str
    tenant: str
    policy: str = "fifo"
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    cells: tuple[CellsIn, ...] = ()
    pinned: tuple[PinIn, ...] = ()
    max_devices_per_user: int | None = None
    max_opportunistic_devices: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VcPatch:
    """Changes to a virtual cluster."""

    policy: str = ""
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    cells: tuple[CellsIn, ...] = ()
    pinned: tuple[PinIn, ...] = ()
    max_devices_per_user: int | None = None
    max_opportunistic_devices: int | None = None
    least_isolation: str = ""
    guests_default: str = ""
    max_guests: int = 1
    note: str = ""
    shadows: tuple[ShadowIn, ...] = ()


class VcDevicesOut(TypedDict):
    """The use of a virtual cluster in devices.

    `unhealthy` and `cordoned` are devices of the guarantee that cannot be used now: faulty
    devices, or healthy devices on nodes that an admin has cordoned or drains.
    """

    guarantee: int
    used: int
    borrowed: int
    lent: int
    unhealthy: int
    cordoned: int
    idle: int
    queued: int


class VcUseOut(TypedDict):
    """A virtual cluster with its use."""

    id: int
    name: str
    tenant: str
    policy: str
    devices: Annotated[VcDevicesOut, From()]
    jobs_queued: Annotated[int, From("queued_jobs")]
    jobs_running: Annotated[int, From("running_jobs")]


class VcColumnsOut(TypedDict):
    """Columns of a virtual cluster, named as in ``VcValues``."""

    policy_args: dict[str, Any]
    max_devices_per_user: int | None
    max_opportunistic_devices: int | None
    least_isolation: str
    guests_default: str
    max_guests: int
    note: str


class VcOut(VcUseOut, VcColumnsOut):
    """A virtual cluster in a list."""

    cells: list[CellsIn]
    pinned: list[PinIn]
    version: int


class LevelOut(TypedDict):
    """One level of a chain: cells in total, guaranteed to others, to this one, and free."""

    chain: str
    device_type: str
    level: str
    type: str
    devices: int
    cells: int
    others: int
    count: int
    left: int


class SizeOut(TypedDict):
    """The time at which a gang fits: now, later, borrow (opportunistic only) or never."""

    devices: int
    fits: str


class FitOut(TypedDict):
    """Gangs that fit, for one device type."""

    device_type: str
    sizes: list[SizeOut]


class PersonUseOut(TypedDict):
    """Devices in use by a person."""

    user: str
    devices: int
    borrowed: int
    jobs: int


class LargestOut(TypedDict):
    """Largest gangs of one instance size: now, after borrowers have left, and with borrowing."""

    device_type: Annotated[str, From("leaf_type")]
    devices: int
    now: int
    reclaimed: int
    borrowed: int


class RecommendedLevelOut(TypedDict):
    """A level: cells guaranteed now, and cells that the jobs of recent weeks would have needed."""

    chain: str
    level: str
    type: str
    count: int
    recommended: int
    peak: int
    gangs: int
    device_hours: Annotated[float, From("device_hours", rounded(3))]


class RecommendedOut(TypedDict):
    """A guarantee recommended from history; `coverage` is the share of past use that it covers."""

    days: int
    runs: Annotated[int, From("attempts")]
    coverage: float
    levels: Annotated[list[RecommendedLevelOut], From("rows")]


class VcPageOut(TypedDict):
    """Fields that only the details of a virtual cluster have, except the fits table."""

    created_at: datetime
    archived_at: datetime | None
    policy_fault: str
    policy_fault_at: datetime | None
    shadows: Annotated[list[ShadowIn], From(by=lambda detail: detail.columns()["shadows"])]
    shape: list[LevelOut]
    people: list[PersonUseOut]
    limited_members: list[str]
    can_edit: bool
    can_set_caps: bool
    can_submit: bool


class VcDetailOut(VcOut, VcPageOut):
    """A virtual cluster with its guarantee, fitting job sizes and use by person."""

    fits: list[FitOut]
    largest: list[LargestOut]
    recommended: RecommendedOut


vc_use_out = Body(VcUseOut, VcUse)


def creation_of(wanted: VcIn) -> CreateVc:
    columns = {name: getattr(wanted, name) for name in VC_COLUMNS if hasattr(wanted, name)}
    return CreateVc(
        name=wanted.name,
        tenant=wanted.tenant,
        values=VcValues(**columns),
        cells=wanted.cells,
        pinned=wanted.pinned,
    )


def vc_out(row: VcRow) -> VcOut:
    return {
        **_columns_out(row),
        **vc_use_out(row.use),
        "cells": [{"chain": c, "level": level, "count": n} for c, level, n in row.cells],
        "pinned": [{"name": name, "address": address} for name, address in row.pinned],
        "version": row.version,
    }


def vc_detail_out(detail: VcDetail, room: VcRoom, recommended: RecommendedShape) -> VcDetailOut:
    return {
        **_columns_out(detail),
        **vc_use_out(detail.use),
        **_page_out(detail),
        "cells": [
            {"chain": row.chain, "level": row.type, "count": row.count}
            for row in detail.shape
            if row.count
        ],
        "pinned": [{"name": pin.name, "address": pin.address} for pin in detail.pinned],
        "version": detail.version,
        "fits": [_fit_out(row) for row in room.fits],
        "largest": [_largest_out(row) for row in room.largest],
        "recommended": _recommended_out(recommended),
    }


def _columns_out(values: VcValues) -> VcColumnsOut:
    """Return the columns that lists and details share, by name."""
    columns = values.columns()
    return cast("VcColumnsOut", {name: columns[name] for name in VcColumnsOut.__annotations__})


def _fit_out(row: FitRow) -> FitOut:
    sizes = zip(row.sizes, row.fits, strict=True)
    return {
        "device_type": row.device_type,
        "sizes": [{"devices": size, "fits": fit.value} for size, fit in sizes],
    }


_largest_out = Body(LargestOut, LargestGang)
_recommended_out = Body(RecommendedOut, RecommendedShape)
_page_out = Body(VcPageOut, VcDetail)


class VcLeafOut(TypedDict):
    """A device of a bound cell: used, lent, idle or bad; `job` is null if you may not see it."""

    address: str
    node: str
    device: int
    use: Annotated[str, From("use.value")]
    tenant: str
    job: Annotated[int | None, From("job_id")]


class VcCellOut(TypedDict):
    """A virtual cell; `physical` is empty while it is not bound."""

    number: int
    address: str
    chain: str
    device_type: str
    level: str
    type: str
    devices: int
    pinned: str
    physical: str
    doomed: bool
    leaves: list[VcLeafOut]


class VcCellsOut(TypedDict):
    """Bound cells first, at most 128; `total` and `bound` count all of them."""

    total: int
    bound: int
    nodes: Annotated[int, From("all_nodes")]
    cells: list[VcCellOut]


vc_cells_out = Body(VcCellsOut, VcCells)
