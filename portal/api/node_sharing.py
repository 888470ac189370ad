"""Device sharing of the cluster and of nodes: guests, limits, and the history of the switches."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.clusters.queries.shared_devices import (
    ClusterSharing,
    NodeSharing,
    cluster_sharing,
    node_sharing,
)
from scheduling.clusters.services.guest_limits import limit_guests
from tenants.clock import database_now


class GuestOnDeviceOut(TypedDict):
    """A guest of a device; `job_id` is null and `name` empty if you may not see the job.

    `open` is the share of the time in which guests may run. `state` is `open`, `closed`, `frozen`,
    `suspended` (it waits for its turn) or `leaving`, and empty without a recent report. Limits are
    `enforced`, `cooperative` or `none`. With `is_peer`, its policy has paired it with the holder
    as an equal: they take turns of `turn_seconds`, or run at the same time (0). `tier` is how it
    is suspended now, `holder_tier` how the holder is; both are empty while the job works.
    """

    slot: int
    tenant: str
    job_id: int | None
    name: str
    mode: str
    memory_limit: str
    compute_limit: str
    open: float | None
    state: str
    is_peer: bool
    turn_seconds: float
    tier: str
    holder_tier: str


class SharingModeOut(TypedDict):
    """A sharing mode that was tried on the node, with its limits."""

    mode: str
    memory_limit: str
    compute_limit: str


class DeviceSharingOut(TypedDict):
    """Sharing of a device; `guests_allowed` is `none`, `same-tenant` or `any`."""

    index: int
    device_type: str
    guests_allowed: str
    modes: list[SharingModeOut]
    guests: list[GuestOnDeviceOut]


class SwitchChangeOut(TypedDict):
    """A change of a switch; `device` is null for the node and the cluster."""

    at: datetime
    actor: str
    action: str
    device: int | None
    before: str
    after: str


class NodeSharingOut(TypedDict):
    """Sharing on a node; `changes` is empty unless you may read the audit log."""

    node_id: int
    enabled: bool
    guests_allowed: str
    devices: list[DeviceSharingOut]
    changes: list[SwitchChangeOut]


class ClusterSharingOut(TypedDict):
    """Totals of device sharing.

    `guests` and `peers` (equals of a holder) are numbers by state, `suspended` the jobs that wait
    for their turn by tier, with holders. `loss_p95` is the 95th percentile of the newest losses of
    holders with guests, `pair_loss_p95` of those with an equal, `over_limit` the number of holders
    with a minute above their limit in the last 24 h.
    """

    sharing: Annotated[bool, From("enabled")]
    devices: int
    guests: dict[str, int]
    peers: dict[str, int]
    suspended: dict[str, int]
    loss_p95: float | None
    pair_loss_p95: float | None
    limit: float | None
    over_limit: int
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestLimitIn:
    """`none`, `same-tenant` or `any`, for the node, or for the device of this number."""

    guests: str
    device: int | None = None


node_sharing_out = Body(NodeSharingOut, NodeSharing)
cluster_sharing_out = Body(ClusterSharingOut, ClusterSharing)

NODE_SHARING: Final[Mapping[str, Op]] = {
    "sharing": Op(answer=NodeSharingOut),
    "limit_guests": Op(body=GuestLimitIn, answer=NodeSharingOut),
}
CLUSTER_SHARING: Final[Mapping[str, Op]] = {"sharing": Op(answer=ClusterSharingOut)}


class NodeSharingActions(ApiViewSet):
    """Actions of nodes for device sharing."""

    @action(detail=True, methods=["get"])
    def sharing(self, request: Request, pk: int) -> Response:
        """Get the sharing modes, guests and limits of a node."""
        return self._sharing(pk)

    @action(detail=True, methods=["post"], url_path="sharing/limit")
    def limit_guests(self, request: Request, pk: int) -> Response:
        """Limit the guests on a node or one of its devices; others leave within 5 s."""
        wanted = read_body(GuestLimitIn, request.data)
        limit_guests(
            viewer=self.viewer,
            node_id=pk,
            guests=wanted.guests,
            device=wanted.device,
            now=database_now(),
        )
        return self._sharing(pk)

    def _sharing(self, pk: int) -> Response:
        return Response(node_sharing_out(node_sharing(self.viewer, pk, now=database_now())))


class ClusterSharingActions(ApiViewSet):
    """The action of the cluster for device sharing."""

    @action(detail=False, methods=["get"])
    def sharing(self, request: Request) -> Response:
        """Get the totals of device sharing, without names of jobs or tenants."""
        return Response(cluster_sharing_out(cluster_sharing(self.viewer, now=database_now())))
