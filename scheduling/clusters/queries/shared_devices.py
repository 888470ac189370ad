"""Shared devices of the cluster and of a node: guests, limits, and the history of the switches."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, Sum

from scheduling.clusters.models import ClusterRules, Device
from scheduling.clusters.queries.nodes import node_for
from scheduling.core.jobspec.sharing import slowdown_of
from scheduling.core.messages import sentence
from scheduling.core.sharing.hosts import LIMITS, SharingMode
from scheduling.core.sharing.peers import tier_now
from scheduling.enums import LeaseKind
from scheduling.runs.models import GuestDelay, Lease, SharedDevice, SharedMinute
from tenants.models import AuditEntry
from tenants.roles import Permission
from tenants.viewers import Viewer

WINDOW: Final = timedelta(hours=24)
FRESH: Final = timedelta(minutes=3)
"""Age from which the last report of a coordinator is out of date."""
MOST_CHANGES: Final = 10
_SWITCHES: Final = ("cluster.sharing", "node.guests", "device.guests")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestOnDevice:
    """A guest of a device, as far as the viewer may see it.

    Attributes:
        tenant: name of the tenant, or "another tenant".
        job_id: None if the viewer may not see the job; its name is then empty.
        open: share of the time in which the gate is open, 0 to 1; None without a recent report.
        state: ``open``, ``closed``, ``frozen``, ``suspended`` (it waits for its turn),
            ``leaving``, or empty if unknown.
        memory_limit, compute_limit: ``enforced``, ``cooperative`` or ``none``.
        is_peer: whether the policy has paired it with the holder as an equal.
        turn_seconds: length of a turn; 0 if it runs at the same time as the holder.
        tier: how it is suspended now (``SuspensionTier``); empty while it is active.
        holder_tier: how the holder is suspended now, for the turn of another job.
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
    is_peer: bool = False
    turn_seconds: float = 0.0
    tier: str = ""
    holder_tier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSharing:
    """Totals of device sharing, without names of jobs or tenants.

    Attributes:
        enabled: whether the cluster shares devices.
        devices: devices with guests now.
        guests: running guests by state, as in ``GuestOnDevice``.
        peers: running jobs that share a device with a holder as its equal, by state.
        suspended: jobs that wait for their turn on a device now, by tier; with holders.
        loss_p95: 95th percentile of the newest losses of holders with guests; None without
            figures.
        pair_loss_p95: the same for holders with an equal.
        limit: the largest loss that one of the holders with guests allows.
        over_limit: holders whose loss was above their limit in a minute of the last 24 hours.
        delay_seconds: delay of holders by guests today (UTC).
    """

    enabled: bool
    devices: int
    guests: Mapping[str, int]
    peers: Mapping[str, int]
    suspended: Mapping[str, int]
    loss_p95: float | None
    pair_loss_p95: float | None
    limit: float | None
    over_limit: int
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingModeRow:
    """A mode that a device offers, with its limits."""

    mode: str
    memory_limit: str
    compute_limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSharing:
    """Sharing of one device of a node.

    Attributes:
        guests_allowed: limit by an admin (``Consent``).
        modes: modes that the last probe has tried, best first.
        guests: its guests now.
    """

    index: int
    device_type: str
    guests_allowed: str
    modes: tuple[SharingModeRow, ...]
    guests: tuple[GuestOnDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchChange:
    """A change of a switch: of the cluster, the node, or one of its devices."""

    at: datetime
    actor: str
    action: str
    device: int | None
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSharing:
    """Sharing on one node.

    Attributes:
        enabled: whether the cluster shares devices.
        guests_allowed: limit by an admin (``Consent``).
        changes: newest changes of the switches; empty for viewers who may not read the audit log.
    """

    node_id: int
    enabled: bool
    guests_allowed: str
    devices: tuple[DeviceSharing, ...]
    changes: tuple[SwitchChange, ...]


def guests_on_devices(
    viewer: Viewer, *, now: datetime, node_id: int | None = None
) -> Mapping[int, tuple[GuestOnDevice, ...]]:
    """Return the guests by device ID, in one query; of one node, or of all nodes."""
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    rows = Lease.objects.filter(released_at=None, kind=LeaseKind.GUEST)
    if node_id is not None:
        rows = rows.filter(device__node_id=node_id)
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    found: dict[int, list[GuestOnDevice]] = defaultdict(list)
    values = rows.order_by("device_id", "slot").values(
        "device_id", "slot", "mode", "job_id", "job__name", "job__tenant_id", "taken_at",
        "member__stop_asked_at", "beside_id", "device__shared__holder_id", "device__shared__at",
        "device__shared__open", "device__shared__guests", "is_peer", "turn_seconds",
        "attempt__suspended_since", "attempt__suspended_by",
        "beside__attempt__suspended_since", "beside__attempt__suspended_by",
    )  # fmt: skip
    for row in values:
        tenant = row["job__tenant_id"]
        is_visible = visible is None or tenant in visible
        found[row["device_id"]].append(
            GuestOnDevice(
                slot=row["slot"],
                tenant=viewer.name_of(tenant),
                job_id=row["job_id"] if is_visible else None,
                name=row["job__name"] if is_visible else "",
                **_state_on_device(row, now),
            )
        )
    return {device: tuple(guests) for device, guests in found.items()}


def _state_on_device(row: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the state of a guest or an equal; parts without a recent report are unknown."""
    at = row["device__shared__at"]
    is_fresh = (
        row["device__shared__holder_id"] == row["beside_id"]
        and at is not None
        and at > max(now - FRESH, row["taken_at"])
    )
    newest = (row["device__shared__guests"] or ()) if is_fresh else ()
    report: Mapping[str, Any] = next((one for one in newest if one["job"] == row["job_id"]), {})
    limits = LIMITS[SharingMode(row["mode"])]
    turns = row["turn_seconds"] if is_fresh else 0.0
    tier = tier_now(row["attempt__suspended_by"], row["attempt__suspended_since"], turns)
    holder_by, holder_since = (
        row["beside__attempt__suspended_by"],
        row["beside__attempt__suspended_since"],
    )
    is_leaving = row["member__stop_asked_at"] is not None
    return {
        "mode": row["mode"],
        "memory_limit": limits.memory,
        "compute_limit": limits.compute,
        "open": row["device__shared__open"] if is_fresh and not turns else None,
        "state": "leaving" if is_leaving else "suspended" if tier else _state(report),
        "is_peer": row["is_peer"],
        "turn_seconds": row["turn_seconds"],
        "tier": tier,
        "holder_tier": tier_now(holder_by, holder_since, turns),
    }


def _state(report: Mapping[str, Any]) -> str:
    """Return the state of a guest in the report of its coordinator; empty without a report."""
    if not report:
        return ""
    if report.get("frozen"):
        return "frozen"
    return "closed" if report.get("open") is False else "open"


def cluster_sharing(viewer: Viewer, *, now: datetime) -> ClusterSharing:
    """Return the totals of device sharing, in at most five queries."""
    on_devices = guests_on_devices(viewer, now=now)
    guests, peers, suspended = Counter[str](), Counter[str](), Counter[str]()
    for there in on_devices.values():
        suspended.update({one.holder_tier for one in there} - {""})
        suspended.update(one.tier for one in there if one.tier)
        for one in there:
            (peers if one.is_peer else guests)[one.state or "unknown"] += 1
    of_guests, of_pairs = _losses(now)
    delays = GuestDelay.objects.filter(day=now.date()).aggregate(total=Sum("seconds"))
    return ClusterSharing(
        enabled=ClusterRules.objects.filter(sharing=True).exists(),
        devices=len(on_devices),
        guests=dict(guests),
        peers=dict(peers),
        suspended=dict(suspended),
        loss_p95=_p95([loss for loss, _ in of_guests]),
        pair_loss_p95=_p95(of_pairs),
        limit=max((limit for _, limit in of_guests), default=None),
        over_limit=_over_limit(now),
        delay_seconds=delays["total"] or 0.0,
    )


def _p95(losses: Sequence[float]) -> float | None:
    ordered = sorted(losses)
    return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)] if ordered else None


def _losses(now: datetime) -> tuple[list[tuple[float, float]], list[float]]:
    """Return the newest loss and the limit of each holder with guests; losses of pairs."""
    rows = SharedDevice.objects.filter(at__gt=now - FRESH, loss__isnull=False)
    pairs = Lease.objects.filter(
        beside=OuterRef("holder_id"), device=OuterRef("device_id"), released_at=None, is_peer=True
    )
    found = {
        member: (loss, sharing, is_pair)
        for member, loss, sharing, is_pair in rows.annotate(is_pair=Exists(pairs)).values_list(
            "holder_id", "loss", "holder__attempt__job__spec__sharing", "is_pair"
        )
    }
    guests = [
        (loss, slowdown_of(sharing))
        for loss, sharing, is_pair in found.values()
        if loss is not None and not is_pair
    ]
    return guests, [loss for loss, _, is_pair in found.values() if loss is not None and is_pair]


def _over_limit(now: datetime) -> int:
    """Return the number of jobs with a minute above their limit in the last day."""
    rows = SharedMinute.objects.filter(minute__gt=now - WINDOW, loss__gt=F("limit"))
    return rows.order_by().values("job_id").distinct().count()


def node_sharing(viewer: Viewer, node_id: int, *, now: datetime) -> NodeSharing:
    """Return the sharing modes, limits and guests of the devices of a node.

    Raises:
        NotFoundError: the node is unknown.
    """
    node = node_for(viewer, node_id)
    guests = guests_on_devices(viewer, now=now, node_id=node.pk)
    devices = Device.objects.filter(node=node, retired_at=None).order_by("index")
    return NodeSharing(
        node_id=node.pk,
        enabled=ClusterRules.objects.filter(sharing=True).exists(),
        guests_allowed=node.guests,
        devices=tuple(
            DeviceSharing(
                index=device.index,
                device_type=device.device_type,
                guests_allowed=device.guests,
                modes=_modes(device.sharing_modes),
                guests=guests.get(device.pk, ()),
            )
            for device in devices
        ),
        changes=_changes(viewer, node.pk),
    )


def _modes(offered: list[str]) -> tuple[SharingModeRow, ...]:
    known = {mode.value for mode in SharingMode}
    rows = [(mode, LIMITS[SharingMode(mode)]) for mode in offered if mode in known]
    return tuple(
        SharingModeRow(mode=mode, memory_limit=limits.memory, compute_limit=limits.compute)
        for mode, limits in rows
    )


def _changes(viewer: Viewer, node_id: int) -> tuple[SwitchChange, ...]:
    here = Q(action="cluster.sharing") | Q(object_type="node", object_id=str(node_id))
    rows = AuditEntry.objects.visible_to(viewer).filter(here, action__in=_SWITCHES)
    return tuple(
        SwitchChange(
            at=row.at,
            actor=row.actor_name,
            action=row.action,
            device=(row.after or {}).get("device"),
            before=_value(row.before or {}),
            after=_value(row.after or {}),
        )
        for row in rows.order_by("-pk")[:MOST_CHANGES]
    )


def _value(values: Mapping[str, Any]) -> str:
    if "sharing" in values:
        return "on" if values["sharing"] else "off"
    return str(values.get("guests", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMinuteRow:
    """The devices of a job in one minute; figures are None if the node did not report them.

    Attributes:
        devices: shared devices with a report.
        guests, frozen: their guests, and how many of them were frozen.
        peers: jobs that shared the devices as equals, among the guests.
        suspended: jobs that waited for their turn at the end of the minute, with the holder.
        limit: the loss that the holder allowed then.
        duty: share of the time in which the only other job worked; None with several devices.
        loss: largest loss of the holder, with its 95 % interval.
        open: smallest share of the time in which guests could run.
        delay_seconds: total delay by guests since the start of the holder.
        over_limit: whether the loss was above the limit of the job.
    """

    minute: datetime
    devices: int
    guests: int
    frozen: int
    peers: int
    suspended: int
    limit: float
    duty: float | None
    loss: float | None
    loss_low: float | None
    loss_high: float | None
    open: float | None
    delay_seconds: float
    closings: int
    over_limit: bool


def sharing_minutes(job_id: int, limit: float) -> tuple[SharedMinuteRow, ...]:
    """Return the history of a holder, at most one day, oldest first, in one query.

    Args:
        job_id: a job that the viewer may see.
        limit: the loss that the job allows, as a share, for minutes without a stored limit.
    """
    rows = SharedMinute.objects.filter(job_id=job_id).order_by("minute").values("minute")
    rows = rows.annotate(
        devices=Count("pk"),
        all_guests=Sum("guests"),
        all_frozen=Sum("frozen"),
        all_peers=Sum("peers"),
        all_suspended=Sum("suspended"),
        most_limit=Max("limit"),
        least_duty=Min("duty"),
        worst=Max("loss"),
        low=Max("loss_low"),
        high=Max("loss_high"),
        least_open=Min("open"),
        delay=Max("delay_seconds"),
        closed=Max("closings"),
    )
    return tuple(
        SharedMinuteRow(
            minute=row["minute"],
            devices=row["devices"],
            guests=row["all_guests"],
            frozen=row["all_frozen"],
            peers=row["all_peers"],
            suspended=row["all_suspended"],
            limit=limit if row["most_limit"] is None else row["most_limit"],
            duty=row["least_duty"] if row["devices"] == 1 else None,
            loss=row["worst"],
            loss_low=row["low"],
            loss_high=row["high"],
            open=row["least_open"],
            delay_seconds=row["delay"],
            closings=row["closed"],
            over_limit=row["worst"] is not None
            and row["worst"] > (limit if row["most_limit"] is None else row["most_limit"]),
        )
        for row in rows[: SharedMinute.RING]
    )
