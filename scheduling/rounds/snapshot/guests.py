"""Devices that take guests, running guests, and waiting jobs that may be guests, for a round.

Nothing is read here while the cluster does not share and no guest runs.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import TextField
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast

from scheduling.core.jobspec.sharing import slowdown_of
from scheduling.core.round.declared_terms import APPLICATION_LABEL
from scheduling.core.sharing.hosts import Consent, GuestNeed, Host, SharingMode
from scheduling.core.sharing.pairs import SLOWDOWN, Paces, PairRecord, application_of, guessed
from scheduling.core.values import ClusterSnapshot, HeldGuest, HoldingJob
from scheduling.enums import JobClass, LeaseKind, MemberStep
from scheduling.jobs.models import Job
from scheduling.runs.models import Lease, PairPace

HEADROOM_SHARE: Final = 0.03
LEAST_HEADROOM: Final = 256 << 20
PEAK_FACTOR: Final = 1.05
STALE: Final = timedelta(minutes=3)
LONG: Final = 30 * 86_400.0
"""Seconds that a holder without a time limit is expected to run still."""
WITHOUT_GUESTS: Final = frozenset({SharingMode.EXCLUSIVE.value, SharingMode.MIG.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class VcSharing:
    """Rules of a virtual cluster about guests on the devices of its jobs."""

    consent: Consent
    most_guests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestLease:
    """A live lease of a guest.

    Attributes:
        holder: ID of the job beside which it was placed.
        holder_member: ID of the member of that job.
        most: bytes of device memory that it may use at first.
        is_peer: whether its policy has paired it with the holder.
        turn_seconds: seconds of a turn on the device; 0 if both run at the same time.
        device_type: type of the device.
        began: start of its processes; None before.
        steps: reported steps of this attempt.
    """

    job: int
    address: str
    node: str
    index: int
    slot: int
    holder: int
    holder_member: int
    most: int
    is_peer: bool = False
    turn_seconds: float = 0.0
    device_type: str = ""
    began: datetime | None = None
    steps: int = 0


def guest_leases(using: str) -> tuple[GuestLease, ...]:
    """Return the live leases of all guests, in the order of their jobs."""
    rows = Lease.objects.using(using).filter(released_at=None, kind=LeaseKind.GUEST)
    return tuple(
        GuestLease(
            job=job,
            address=address,
            node=node,
            index=index,
            slot=slot,
            holder=holder,
            holder_member=member,
            most=most or 0,
            is_peer=is_peer,
            turn_seconds=turn,
            device_type=kind,
            began=began,
            steps=steps or 0,
        )
        for (
            job, address, node, index, slot, holder, member, most, is_peer, turn, kind, began,
            steps,
        ) in rows.order_by("job_id").values_list(
            "job_id", "device__address", "device__node__name", "device__index", "slot",
            "beside__attempt__job_id", "beside_id", "most", "is_peer", "turn_seconds",
            "device__device_type", "member__started_at", "attempt__progress__steps",
        )
    )  # fmt: skip


def held_guests(
    leases: Iterable[GuestLease], jobs: Mapping[int, HoldingJob]
) -> tuple[HeldGuest, ...]:
    """Return the running opportunistic guests; ``jobs`` has each with its device."""
    return tuple(
        HeldGuest(
            job=jobs[lease.job],
            address=lease.address,
            node=lease.node,
            index=lease.index,
            slot=lease.slot,
            holder=lease.holder,
        )
        for lease in leases
        if lease.job in jobs and not lease.is_peer
    )


def with_sharing(
    snapshot: ClusterSnapshot,
    jobs: Mapping[int, HoldingJob],
    sharing: Mapping[int, VcSharing],
    now: datetime,
    using: str,
) -> ClusterSnapshot:
    """Add hosts, running guests and the needs of waiting ones.

    Args:
        snapshot: of the jobs with own devices.
        jobs: the running guests, by ID.
        sharing: rules about guests by virtual cluster; empty if the cluster does not share.
        now: time of the snapshot.
        using: database alias.
    """
    found = guest_leases(using) if jobs else ()
    holding = {job.id: job for job in snapshot.holding}
    waiting = {job.id for job in snapshot.queued}
    needs = guest_needs(using) if sharing else {}
    return replace(
        snapshot,
        hosts=hosts(using, sharing, found, holding, now),
        guests=held_guests(found, jobs),
        guest_needs={pk: need for pk, need in needs.items() if pk in waiting},
    )


def guest_needs(using: str) -> dict[int, GuestNeed]:
    """Return the memory needs of waiting jobs that may be guests, by job."""
    rows = Job.objects.unscoped().using(using).live().filter(guest_floor__isnull=False)
    return {
        pk: GuestNeed(
            floor=floor,
            wants=wants or floor,
            application=application_of(tenant, labels.get(APPLICATION_LABEL), name),
        )
        for pk, floor, wants, tenant, labels, name in rows.order_by("id").values_list(
            "id", "guest_floor", "guest_wants", "tenant_id", "labels", "name"
        )
        if floor
    }


_HOST_COLUMNS: Final = (
    "device__address", "device__node__name", "device__index", "device__device_type",
    "device__node__isolation_level", "device__memory_bytes", "device__sharing_modes",
    "device__guests", "device__node__guests",
    "job_id", "job__virtual_cluster_id", "job__tenant_id", "job__max_duration_seconds",
    "member_id", "member__role", "member__step", "member__stop_asked_at",
    "attempt__running_at", "attempt__progress__steps",
    "attempt__use__busy", "attempt__use__memory_peak",
    "device__shared__holder_id", "device__shared__at", "device__shared__account",
    "device__shared__memory_free", "sharing_text", "job__labels", "job__name",
)  # fmt: skip


def hosts(
    using: str,
    rules: Mapping[int, VcSharing],
    guests: Iterable[GuestLease],
    holding: Mapping[int, HoldingJob],
    now: datetime,
) -> tuple[Host, ...]:
    """Return the devices whose holder allows guests, or that have some.

    Args:
        using: database alias.
        rules: by virtual cluster; empty if the cluster does not share.
        guests: the live leases of guests.
        holding: the jobs that hold devices.
        now: time of the snapshot.
    """
    if not rules:
        return ()
    beside: dict[str, list[GuestLease]] = defaultdict(list)
    for guest in guests:
        beside[guest.address].append(guest)
    rows = (
        Lease.objects.using(using)
        .filter(
            released_at=None,
            kind=LeaseKind.USING,
            job__job_class=JobClass.GUARANTEED,
            job__sharing_stopped_at=None,
            device__retired_at=None,
        )
        .exclude(device__sharing_modes=[])
        .annotate(sharing_text=Cast(KeyTransform("sharing", "job__spec"), TextField()))
        .order_by("device__address")
        .values_list(*_HOST_COLUMNS)
    )
    found = []
    for values in rows:
        row = dict(zip(_HOST_COLUMNS, values, strict=True))
        host = _host(row, rules, beside[row["device__address"]], holding, now)
        if host is not None:
            label = row["job__labels"].get(APPLICATION_LABEL)
            found.append((host, application_of(host.tenant, label, row["job__name"])))
    measured = paces_of_pairs(using, {application for _, application in found})
    return tuple(
        replace(host, paces=_shrunk(measured[application, host.type], host))
        if (application, host.type) in measured
        else host
        for host, application in found
    )


def paces_of_pairs(
    using: str, holders: Collection[str]
) -> dict[tuple[str, str], dict[str, PairRecord]]:
    """Return the measured pairs of some holders' applications, by it and type, then by guest."""
    found: dict[tuple[str, str], dict[str, PairRecord]] = defaultdict(dict)
    rows = PairPace.objects.using(using).filter(holder__in=holders) if holders else ()
    for row in rows:
        found[row.holder, row.device_type][row.guest] = row.record
    return found


def _shrunk(measured: Mapping[str, PairRecord], host: Host) -> dict[str, Paces]:
    guess = Paces(guessed(SLOWDOWN, None).holder, host.pace)
    return {guest: measured[guest].shrunk(guess) for guest in sorted(measured)}


def _host(
    row: Mapping[str, Any],
    rules: Mapping[int, VcSharing],
    guests: list[GuestLease],
    holding: Mapping[int, HoldingJob],
    now: datetime,
) -> Host | None:
    """Return a device as a host; None if its holder allows no guests or it cannot be shared."""
    rule = rules.get(row["job__virtual_cluster_id"])
    mode = _mode(row["device__sharing_modes"])
    if rule is None or mode is None:
        return None
    sharing = json.loads(row["sharing_text"]) if row["sharing_text"] else {}
    consent = Consent.strictest(
        sharing.get("guests", rule.consent), row["device__guests"], row["device__node__guests"]
    )
    if consent is Consent.NONE or rule.most_guests == 0:
        return None
    slowdown = slowdown_of(sharing)
    running_at, steps = row["attempt__running_at"], row["attempt__progress__steps"] or 0
    if row["member__step"] != MemberStep.RUNNING or row["member__stop_asked_at"] is not None:
        steps = 0  # the holder is leaving: its guests may stay until then, and no guest may join
    ran = (now - running_at).total_seconds() if running_at else 0.0
    limit, busy = row["job__max_duration_seconds"], row["attempt__use__busy"]
    is_current = (
        row["device__shared__holder_id"] == row["member_id"]
        and row["device__shared__at"] > now - STALE
    )
    account = row["device__shared__account"] if is_current else None
    return Host(
        address=row["device__address"],
        node=row["device__node__name"],
        index=row["device__index"],
        holder=row["job_id"],
        type=row["device__device_type"],
        mode=mode,
        isolation=row["device__node__isolation_level"] or "",
        tenant=row["job__tenant_id"],
        consent=consent,
        slots=tuple(sorted(guest.slot for guest in guests)),
        most_guests=rule.most_guests,
        memory_free=_memory_free(row, guests, holding, mode, is_current=is_current),
        steady_seconds=max(0.0, ran),
        steps=steps,
        account_empty=account is not None and account < 0.0,
        pace=guessed(slowdown, 1.0 - busy if busy is not None else None).guest,
        seconds_left=max(0.0, limit - ran) if limit else LONG,
    )


def _mode(stored: Iterable[str]) -> SharingMode | None:
    """Return the best mode in which a node can share a device; it lists the best one first."""
    known = {mode.value for mode in SharingMode} - WITHOUT_GUESTS
    return next((SharingMode(mode) for mode in stored if mode in known), None)


def _memory_free(
    row: Mapping[str, Any],
    guests: list[GuestLease],
    holding: Mapping[int, HoldingJob],
    mode: SharingMode,
    *,
    is_current: bool,
) -> int:
    """Return the bytes for another guest, as measured on the node or else by the holder's peak.

    The memory of a slot is memory of the node, for which its telemetry has no peak. The holder's
    own limit is used instead. Without any bound on its memory, a device takes no guest.
    """
    size = row["device__memory_bytes"]
    if is_current and row["device__shared__memory_free"] is not None:
        return min(int(row["device__shared__memory_free"]), int(size))
    peak = row["attempt__use__memory_peak"] or 0
    if mode is SharingMode.SLOT:
        peak = _limit_of(holding.get(row["job_id"]), row["member__role"])
    if not peak:
        return 0
    headroom = max(LEAST_HEADROOM, int(HEADROOM_SHARE * size))
    used = sum(guest.most for guest in guests)
    return max(0, int(size) - headroom - int(PEAK_FACTOR * peak) - used)


def _limit_of(job: HoldingJob | None, role: str) -> int:
    """Return the memory limit of an instance for each of its devices; 0 without a limit."""
    for member in job.demand.members if job is not None else ():
        if member.role == role and member.memory is not None:
            return member.memory // member.devices
    return 0
