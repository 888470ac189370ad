"""Virtual clusters: their guarantees, policies and caps, and which job sizes fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, TypedDict

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body, read_changes
from portal.api.schema import IF_MATCH, PAGE, Op
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.selectors.cluster import VcUse
from scheduling.selectors.fits import FitRow
from scheduling.selectors.virtual_clusters import (
    QuotaRow,
    VcDetail,
    VcRow,
    list_virtual_clusters,
    virtual_cluster_detail,
)
from scheduling.services import virtual_clusters


class CellsIn(TypedDict):
    """``count`` cells of ``level`` (a cell type, or node, socket, ...) in ``chain``."""

    chain: str
    level: str
    count: int


class PinIn(TypedDict):
    """One physical cell by its address."""

    name: str
    address: str


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
    """What can be changed of a virtual cluster."""

    policy: str = ""
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    cells: tuple[CellsIn, ...] = ()
    pinned: tuple[PinIn, ...] = ()
    max_devices_per_user: int | None = None
    max_opportunistic_devices: int | None = None
    note: str = ""


class VcDevicesOut(TypedDict):
    """A virtual cluster in devices."""

    guarantee: int
    used: int
    borrowed: int
    lent: int
    unhealthy: int
    idle: int
    queued: int


class VcUseOut(TypedDict):
    """A virtual cluster with its use."""

    id: int
    name: str
    tenant: str
    policy: str
    devices: VcDevicesOut
    jobs_queued: int
    jobs_running: int


class VcOut(VcUseOut):
    """A virtual cluster in a list."""

    policy_args: dict[str, Any]
    cells: list[CellsIn]
    pinned: list[PinIn]
    max_devices_per_user: int | None
    max_opportunistic_devices: int | None
    note: str
    version: int


class LevelOut(TypedDict):
    """One level of a chain: what is there, promised to others, to this one, and still left."""

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
    """Whether a gang of so many devices fits: now, later, borrow (opportunistic only), never."""

    devices: int
    fits: str


class FitOut(TypedDict):
    """Which gangs fit, for one device type."""

    device_type: str
    sizes: list[SizeOut]


class PersonUseOut(TypedDict):
    """Devices that one person holds now."""

    user: str
    devices: int
    borrowed: int
    jobs: int


class VcDetailOut(VcOut):
    """A virtual cluster with its shape, what fits and who uses it."""

    created_at: datetime
    archived_at: datetime | None
    shape: list[LevelOut]
    fits: list[FitOut]
    people: list[PersonUseOut]
    limited_members: list[str]
    can_edit: bool
    can_set_caps: bool
    can_submit: bool


class VirtualClusterViewSet(ApiViewSet):
    """Guaranteed shares of the cluster."""

    collection = "virtual-clusters"
    operations: ClassVar = {
        "list": Op(
            takes=(OpenApiParameter("tenant", str, description="Name."), *PAGE),
            answer=VcOut,
            pages=True,
        ),
        "create": Op(body=VcIn, answer=VcDetailOut, status=201),
        "retrieve": Op(answer=VcDetailOut),
        "partial_update": Op(takes=(IF_MATCH,), body=VcPatch, answer=VcDetailOut),
        "destroy": Op(takes=(IF_MATCH,), status=204),
    }

    def list(self, request: Request) -> Response:
        """Virtual clusters of your tenants with their use."""
        tenant = self.query.text("tenant")
        rows = [
            row for row in list_virtual_clusters(self.viewer) if tenant in ("", row.use.tenant)
        ]
        return self.page(self.cut(rows, lambda row: row.use.id), vc_out)

    def create(self, request: Request) -> Response:
        """Make a virtual cluster; refused with 409 when its cells do not fit beside the others."""
        wanted = read_body(VcIn, request.data)
        vc = virtual_clusters.create_virtual_cluster(
            viewer=self.viewer,
            name=wanted.name,
            tenant=wanted.tenant,
            policy=wanted.policy,
            policy_args=wanted.policy_args,
            cells=_plain(wanted.cells),
            pinned=_plain(wanted.pinned),
            max_devices_per_user=wanted.max_devices_per_user,
            max_opportunistic_devices=wanted.max_opportunistic_devices,
            note=wanted.note,
            now=timezone.now(),
        )
        return self._detail(vc.pk, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """One virtual cluster: its shape, which job sizes fit, and who uses it."""
        return self._detail(pk)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Change the guarantee, the policy or the caps; what runs goes on."""
        changes = read_changes(VcPatch, request.data)
        for name in {"cells", "pinned"} & changes.keys():
            changes[name] = _plain(changes[name])
        virtual_clusters.update_virtual_cluster(
            viewer=self.viewer,
            virtual_cluster_id=pk,
            now=timezone.now(),
            expected_version=expected_version(request),
            **changes,
        )
        return self._detail(pk)

    def destroy(self, request: Request, pk: int) -> Response:
        """Put a virtual cluster without live jobs away; its guarantee becomes free."""
        virtual_clusters.archive_virtual_cluster(
            viewer=self.viewer,
            virtual_cluster_id=pk,
            now=timezone.now(),
            expected_version=expected_version(request),
        )
        return Response(status=204)

    def _detail(self, pk: int, *, status: int = 200) -> Response:
        detail = virtual_cluster_detail(self.viewer, pk)
        return versioned(vc_detail_out(detail), detail.version, status=status)


def vc_use_out(use: VcUse) -> VcUseOut:
    """A virtual cluster with its use."""
    return {
        "id": use.id,
        "name": use.name,
        "tenant": use.tenant,
        "policy": use.policy,
        "devices": {
            "guarantee": use.guarantee,
            "used": use.used,
            "borrowed": use.borrowed,
            "lent": use.lent,
            "unhealthy": use.unhealthy,
            "idle": use.idle,
            "queued": use.queued,
        },
        "jobs_queued": use.queued_jobs,
        "jobs_running": use.running_jobs,
    }


def vc_out(row: VcRow) -> VcOut:
    """A virtual cluster in a list."""
    return {
        **vc_use_out(row.use),
        "policy_args": dict(row.policy_args),
        "cells": [{"chain": c, "level": level, "count": n} for c, level, n in row.cells],
        "pinned": [{"name": name, "address": address} for name, address in row.pinned],
        "max_devices_per_user": row.max_devices_per_user,
        "max_opportunistic_devices": row.max_opportunistic_devices,
        "note": row.note,
        "version": row.version,
    }


def vc_detail_out(detail: VcDetail) -> VcDetailOut:
    """A virtual cluster's page."""
    return {
        **vc_use_out(detail.use),
        "policy_args": dict(detail.policy_args),
        "cells": [
            {"chain": row.chain, "level": row.type, "count": row.count}
            for row in detail.shape
            if row.count
        ],
        "pinned": [{"name": pin.name, "address": pin.address} for pin in detail.pinned],
        "max_devices_per_user": detail.max_devices_per_user,
        "max_opportunistic_devices": detail.max_opportunistic_devices,
        "note": detail.note,
        "version": detail.version,
        "created_at": detail.created_at,
        "archived_at": detail.archived_at,
        "shape": [_level_out(row) for row in detail.shape],
        "fits": [_fit_out(row) for row in detail.fits],
        "people": [
            {"user": p.user, "devices": p.devices, "borrowed": p.borrowed, "jobs": p.jobs}
            for p in detail.people
        ],
        "limited_members": list(detail.limited_members),
        "can_edit": detail.can_edit,
        "can_set_caps": detail.can_set_caps,
        "can_submit": detail.can_submit,
    }


def _level_out(row: QuotaRow) -> LevelOut:
    return {
        "chain": row.chain,
        "device_type": row.device_type,
        "level": row.level,
        "type": row.type,
        "devices": row.devices,
        "cells": row.cells,
        "others": row.others,
        "count": row.count,
        "left": row.left,
    }


def _fit_out(row: FitRow) -> FitOut:
    sizes: list[SizeOut] = [
        {"devices": size, "fits": fit.value} for size, fit in zip(row.sizes, row.fits, strict=True)
    ]
    return {"device_type": row.device_type, "sizes": sizes}


def _plain(entries: tuple[Any, ...]) -> list[Mapping[str, Any]]:
    return [dict(entry) for entry in entries]
