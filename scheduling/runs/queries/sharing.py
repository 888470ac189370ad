"""Device sharing of one job for pages and REST: its guests, or the holder of its device."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from scheduling.clusters.models import ClusterRules
from scheduling.core.jobspec.sharing import DEFAULT_SLOWDOWN, slowdown_of
from scheduling.core.sharing.hosts import LIMITS, Consent, SharingMode
from scheduling.core.sharing.peers import PEER_SLOWDOWN, tier_now
from scheduling.enums import JobClass, LeaseKind
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import visible_job
from scheduling.runs.models import Lease, SharedDevice
from tenants.roles import Permission
from tenants.viewers import Viewer

HOLDER, GUEST, PEER, NEITHER = "holder", "guest", "peer", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWith:
    """Another job on the device.

    Attributes:
        job_id: None if the viewer may not see the job.
        name: name of the job; empty if the viewer may not see it.
        slot: 0 for the holder, 1 to 3 for guests.
        leaving: whether it has its notice to leave the device.
        memory: device memory in use in bytes; None if unknown.
        most: bytes that a guest may use at first; None for the holder.
        duty: share of the time in which a guest works, 0 to 1; None if unknown.
        frozen: whether a guest is frozen now.
        role: ``holder``, ``guest``, or ``peer`` for an equal of the holder.
        tier: how it is suspended for the turn of another job now; empty while it is active.
        suspended_since: time at which that began; None while it works.
    """

    job_id: int | None
    name: str
    slot: int
    leaving: bool
    memory: int | None = None
    most: int | None = None
    duty: float | None = None
    frozen: bool = False
    role: str = GUEST
    tier: str = ""
    suspended_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDeviceRow:
    """A device that the job shares; figures are None without a report of the node.

    Attributes:
        mode: the sharing mode.
        memory_limit, compute_limit: ``enforced``, ``cooperative`` or ``none``.
        at: time of the newest report.
        loss: share of its own pace that the holder loses, with its 95 % interval.
        baseline: seconds of a step of the holder without guests.
        open: share of the time in which guests may run.
        delay_seconds: total delay of the holder by guests.
        closings: number of times that the gate closed.
        limit: share of its own pace that the holder may lose: its slowdown, or that of an equal.
        turn_seconds: length of a turn, if the jobs take turns; else 0.
        role: ``holder``, ``guest`` or ``peer``: that of this job.
        tier: how this job is suspended for the turn of another job now; empty while it is active.
        suspended_since: time at which that began; None while it works.
    """

    node: str
    index: int
    device_type: str
    mode: str
    memory_limit: str
    compute_limit: str
    others: tuple[SharedWith, ...]
    at: datetime | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    baseline: float | None = None
    open: float | None = None
    delay_seconds: float = 0.0
    closings: int = 0
    limit: float = DEFAULT_SLOWDOWN / 100
    turn_seconds: float = 0.0
    role: str = HOLDER
    tier: str = ""
    suspended_since: datetime | None = None

    @property
    def place(self) -> str:
        """Node and number of the device, as pages show them."""
        return f"{self.node}/{self.index}"

    @property
    def is_pair(self) -> bool:
        """Whether equals share the device."""
        return any(PEER in (other.role, self.role) for other in self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSharing:
    """Device sharing of a job.

    Attributes:
        role: ``holder``, ``guest`` or ``peer`` (an equal beside the holder), or empty.
        guests: guests that the job allows (``Consent``); empty for opportunistic jobs.
        slowdown_percent: percent of its own pace that the job may lose by guests.
        enabled: whether the cluster shares devices.
        stopped_at: time at which sharing was stopped for the job; None if it was not.
        guest_seconds: seconds that ended attempts of the job have run as a guest.
        suspensions: number of suspensions of the current attempt in turns.
        suspended_seconds: time for which they lasted.
    """

    job_id: int
    role: str
    guests: str
    slowdown_percent: int
    enabled: bool
    stopped_at: datetime | None
    guest_seconds: float
    devices: tuple[SharedDeviceRow, ...]
    suspensions: int = 0
    suspended_seconds: float = 0.0


def job_sharing(viewer: Viewer, job_id: int) -> JobSharing:
    """Return the device sharing of a job, in at most five queries.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    job = visible_job(viewer, job_id)
    leases = list(_leases(job))
    mine = [lease for lease in leases if lease.job_id == job.pk]
    beside = next((lease for lease in mine if lease.kind == LeaseKind.GUEST), None)
    others: dict[int, list[Lease]] = defaultdict(list)
    for lease in leases:
        if lease.job_id != job.pk:
            others[lease.device_id].append(lease)
    states = {
        state.device_id: state for state in SharedDevice.objects.filter(device_id__in=list(others))
    }
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    devices = tuple(
        _device_row(lease, others[lease.device_id], states.get(lease.device_id), visible)
        for lease in mine
        if others[lease.device_id]
    )
    attempt = mine[0].attempt if mine else None
    return JobSharing(
        job_id=job.pk,
        role=HOLDER
        if beside is None and devices
        else NEITHER
        if beside is None
        else _role(beside),
        guests=_consent(job),
        slowdown_percent=slowdown_percent(job),
        enabled=ClusterRules.objects.filter(sharing=True).exists(),
        stopped_at=job.sharing_stopped_at,
        guest_seconds=job.guest_seconds,
        devices=devices,
        suspensions=0 if attempt is None else attempt.suspensions,
        suspended_seconds=0.0 if attempt is None else attempt.suspended_seconds,
    )


def slowdown_percent(job: Job) -> int:
    """Return the percent of its own pace that a job may lose by guests."""
    return round(100 * slowdown_of(job.spec.get("sharing")))


def _leases(job: Job) -> "QuerySet[Lease]":
    """Return the live leases of all devices that the job uses."""
    own = Lease.objects.filter(job=job, released_at=None).values("device_id")
    rows = Lease.objects.filter(Q(device_id__in=own), released_at=None)
    rows = rows.exclude(kind=LeaseKind.RESERVED)
    rows = rows.select_related("device__node", "job", "member", "attempt")
    return rows.order_by("device_id", "slot")


def _role(lease: Lease) -> str:
    if lease.kind == LeaseKind.USING:
        return HOLDER
    return PEER if lease.is_peer else GUEST


def _consent(job: Job) -> str:
    if job.job_class != JobClass.GUARANTEED:
        return ""
    given = (job.spec.get("sharing") or {}).get("guests")
    return Consent(given or job.virtual_cluster.guests_default).value


def _device_row(
    lease: Lease,
    others: Iterable[Lease],
    state: SharedDevice | None,
    visible: frozenset[int] | None,
) -> SharedDeviceRow:
    all_there = [lease, *others]
    mode = next((one.mode for one in all_there if one.mode), SharingMode.EXCLUSIVE.value)
    limits = LIMITS[SharingMode(mode)]
    holder = next((one.member_id for one in all_there if one.kind == LeaseKind.USING), None)
    is_current = state is not None and state.holder_id == holder
    told: dict[int, Any] = {}
    figures: dict[str, Any] = {}
    if state is not None and is_current:
        # A job that has come back to the device has no figures of its former attempt.
        since = {one.job_id: one.taken_at for one in others}
        told = {
            one["job"]: one
            for one in state.guests
            if one["job"] in since and since[one["job"]] <= state.at
        }
        names = ("at", "loss", "loss_low", "loss_high", "baseline", "open", "delay_seconds")
        figures = {name: getattr(state, name) for name in (*names, "closings")}
    peers = [one for one in all_there if one.is_peer]
    turns = max((one.turn_seconds for one in peers), default=0.0)
    holding = next((one.job for one in all_there if one.kind == LeaseKind.USING), lease.job)
    return SharedDeviceRow(
        node=lease.device.node.name,
        index=lease.device.index,
        device_type=lease.device.device_type,
        mode=mode,
        memory_limit=limits.memory,
        compute_limit=limits.compute,
        others=tuple(
            _shared_with(one, told.get(one.job_id, {}), visible, turns if is_current else 0.0)
            for one in others
        ),
        limit=PEER_SLOWDOWN if peers else slowdown_of(holding.spec.get("sharing")),
        turn_seconds=turns,
        role=_role(lease),
        **_suspended(lease, turns if is_current else 0.0),
        **figures,
    )


def _suspended(lease: Lease, turns: float) -> dict[str, Any]:
    """Return the current suspension of a job in turns; none without a report of the device."""
    attempt = lease.attempt
    tier = tier_now(attempt.suspended_by, attempt.suspended_since, turns)
    return {"tier": tier, "suspended_since": attempt.suspended_since if tier else None}


def _shared_with(
    lease: Lease, told: Mapping[str, Any], visible: frozenset[int] | None, turns: float
) -> SharedWith:
    is_visible = visible is None or lease.job.tenant_id in visible
    return SharedWith(
        job_id=lease.job_id if is_visible else None,
        name=lease.job.name if is_visible else "",
        slot=lease.slot,
        leaving=lease.member.stop_asked_at is not None,
        memory=told.get("memory"),
        most=lease.most,
        duty=told.get("duty"),
        frozen=bool(told.get("frozen")),
        role=_role(lease),
        **_suspended(lease, turns),
    )
