"""Virtual clusters: their guarantees, policies and caps, and which job sizes fit."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body, read_changes
from portal.api.reconfiguration_shapes import ReconfigurationOut, reconfiguration_out
from portal.api.schema import DRY_RUN, IF_MATCH, PAGE, Op
from portal.api.shadow_shapes import SINCE, ShadowTotalsOut
from portal.api.vc_cells import VcCellsOut, vc_cells_out
from portal.api.vc_shapes import VcDetailOut, VcIn, VcOut, VcPatch, vc_detail_out, vc_out
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.selectors.recommendations import recommended_shape
from scheduling.selectors.shadows import shadow_totals
from scheduling.selectors.vc_room import VcRoom, virtual_cluster_room
from scheduling.selectors.virtual_clusters import (
    asked_vc,
    detail_of,
    list_virtual_clusters,
    virtual_cluster_for,
)
from scheduling.selectors.watching import idle_rule_of
from scheduling.services import virtual_clusters
from scheduling.services.cluster_edits import ArchiveVc, ChangeVc, CreateVc, Edit
from scheduling.services.idling import set_idle_rule
from scheduling.services.reconfiguration import reconfigure
from tenants.clock import database_now
from tenants.errors import StaleEditError


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicyIn:
    """Percent and seconds; ``stop_after`` null: jobs are warned and not stopped."""

    below: float = 5.0
    warn_after: int = 1800
    stop_after: int | None = 3600
    exempt_priorities: tuple[str, ...] = ()
    binding: bool = False


class IdlePolicyOut(TypedDict):
    """What happens to idling jobs; null: nothing."""

    idle_policy: Any


class VirtualClusterViewSet(ApiViewSet):
    """Guaranteed shares of the cluster."""

    collection = "virtual-clusters"
    operations: ClassVar = {
        "list": Op(
            takes=(OpenApiParameter("tenant", str, description="Name."), *PAGE),
            answer=VcOut,
            pages=True,
        ),
        "create": Op(
            takes=(DRY_RUN,),
            body=VcIn,
            answer=VcDetailOut,
            status=201,
            also={200: ReconfigurationOut},
        ),
        "retrieve": Op(answer=VcDetailOut),
        "partial_update": Op(
            takes=(DRY_RUN, IF_MATCH), body=VcPatch, answer=VcDetailOut | ReconfigurationOut
        ),
        "destroy": Op(takes=(DRY_RUN, IF_MATCH), status=204, also={200: ReconfigurationOut}),
        "cells": Op(answer=VcCellsOut),
        "idle_policy": Op(answer=IdlePolicyOut),
        "set_idle_policy": Op(body=IdlePolicyIn, answer=IdlePolicyOut),
        "clear_idle_policy": Op(status=204),
        "shadows": Op(takes=(SINCE,), answer=ShadowTotalsOut),
    }

    def list(self, request: Request) -> Response:
        """Virtual clusters of your tenants with their use."""
        tenant = self.query.text("tenant")
        rows = [
            row for row in list_virtual_clusters(self.viewer) if tenant in ("", row.use.tenant)
        ]
        return self.page(self.cut(rows, lambda row: row.use.id), vc_out)

    def create(self, request: Request) -> Response:
        """Make a virtual cluster; refused with 409 when its cells do not fit beside the others.

        With `dry_run=1` nothing is written, and the answer says what it would do.
        """
        wanted = read_body(VcIn, request.data)
        if self.query.flag("dry_run"):
            return self._tried(creation_of(wanted))
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
            now=database_now(),
        )
        return self._detail(vc.pk, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """One virtual cluster: its shape, which job sizes fit, and who uses it."""
        return self._detail(pk)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Change the guarantee, the policy or the caps; what runs goes on.

        With `dry_run=1` nothing is written, and the answer says who would borrow from then on.
        """
        changes = read_changes(VcPatch, request.data)
        for name in {"cells", "pinned", "shadows"} & changes.keys():
            changes[name] = _plain(changes[name])
        if self.query.flag("dry_run"):
            return self._try_change(pk, changes, expected_version(request))
        virtual_clusters.update_virtual_cluster(
            viewer=self.viewer,
            virtual_cluster_id=pk,
            now=database_now(),
            expected_version=expected_version(request),
            **changes,
        )
        return self._detail(pk)

    def destroy(self, request: Request, pk: int) -> Response:
        """Put a virtual cluster without live jobs away; its guarantee becomes free."""
        if self.query.flag("dry_run"):
            row = virtual_cluster_for(self.viewer, pk)
            return self._tried(ArchiveVc(virtual_cluster=row.name))
        virtual_clusters.archive_virtual_cluster(
            viewer=self.viewer,
            virtual_cluster_id=pk,
            now=database_now(),
            expected_version=expected_version(request),
        )
        return Response(status=204)

    @action(detail=True, methods=["get"])
    def cells(self, request: Request, pk: int) -> Response:
        """Its cells and where they are now: virtual beside physical, with what is on them."""
        return Response(vc_cells_out(virtual_cluster_room(self.viewer, pk).cells))

    @action(detail=True, methods=["get"])
    def shadows(self, request: Request, pk: int) -> Response:
        """Its shadow policies, each summed up over the rounds that it has decided."""
        totals = shadow_totals(self.viewer, pk, since=self.query.moment("since"))
        return Response({"shadows": [asdict(total) for total in totals]})

    @action(detail=True, methods=["get"], url_path="idle-policy")
    def idle_policy(self, request: Request, pk: int) -> Response:
        """What happens to its idling jobs that say nothing themselves."""
        return self._idle_policy(pk)

    @idle_policy.mapping.put
    def set_idle_policy(self, request: Request, pk: int) -> Response:
        """Say what happens to its idling jobs that say nothing themselves."""
        vc, _ = idle_rule_of(self.viewer, pk)
        given = read_changes(IdlePolicyIn, request.data)
        set_idle_rule(viewer=self.viewer, virtual_cluster=vc, rule=given)
        return self._idle_policy(pk)

    @idle_policy.mapping.delete
    def clear_idle_policy(self, request: Request, pk: int) -> Response:
        """Leave its idling jobs alone."""
        vc, _ = idle_rule_of(self.viewer, pk)
        set_idle_rule(viewer=self.viewer, virtual_cluster=vc, rule=None)
        return Response(status=204)

    def _idle_policy(self, pk: int) -> Response:
        _, rule = idle_rule_of(self.viewer, pk)
        return Response({"idle_policy": rule or None})

    def _detail(self, pk: int, *, status: int = 200) -> Response:
        asked = asked_vc(self.viewer, pk)
        detail = detail_of(asked)
        shape = recommended_shape(pk, detail.shape, now=database_now(), topology=asked.topology)
        body = vc_detail_out(detail, VcRoom(asked), shape)
        return versioned(body, detail.version, status=status)

    def _try_change(self, pk: int, changes: Mapping[str, Any], seen: int | None) -> Response:
        row = virtual_cluster_for(self.viewer, pk)
        if seen is not None and seen != row.version:
            raise StaleEditError.of("virtual cluster", seen)
        return self._tried(
            ChangeVc(
                virtual_cluster=row.name,
                cells=changes.get("cells"),
                pinned=changes.get("pinned"),
            )
        )

    def _tried(self, edit: Edit) -> Response:
        answer = reconfigure(viewer=self.viewer, edits=(edit,), now=database_now(), dry_run=True)
        return Response(reconfiguration_out(answer))


def creation_of(wanted: VcIn) -> CreateVc:
    """A new virtual cluster as an edit of a reconfiguration."""
    return CreateVc(
        name=wanted.name,
        tenant=wanted.tenant,
        policy=wanted.policy,
        policy_args=wanted.policy_args,
        cells=_plain(wanted.cells),
        pinned=_plain(wanted.pinned),
        max_devices_per_user=wanted.max_devices_per_user,
        max_opportunistic_devices=wanted.max_opportunistic_devices,
        note=wanted.note,
    )


def _plain(entries: tuple[Any, ...]) -> list[Mapping[str, Any]]:
    return [dict(entry) for entry in entries]
