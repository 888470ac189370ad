"""State of coordinators from the telemetry of nodes, and the history of each shared device."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from django.db import transaction
from django.db.models import F, Max

from scheduling.core.jobspec.sharing import slowdown_of
from scheduling.core.messages import sentence
from scheduling.core.notices import SLOWED
from scheduling.core.sharing.pairs import Paces
from scheduling.core.sharing.peers import PEER_SLOWDOWN
from scheduling.enums import LeaseKind
from scheduling.jobs.models import JobEvent
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.runs.models import Attempt, GuestDelay, Lease, SharedDevice, SharedMinute
from scheduling.runs.services.pairs import PairObservation, observe_pairs
from tessera.run_spec import make_run_id
from workers.transports.base import DeviceReading, SuspensionReading

_COLUMNS = (
    "baseline", "loss", "loss_low", "loss_high", "open", "account", "reserve", "closings",
    "delay_seconds", "memory_free",
)  # fmt: skip
_OF_MINUTES = (
    "baseline", "loss", "loss_low", "loss_high", "open", "delay_seconds", "closings",
)  # fmt: skip
_COUNTED = ("guests", "frozen", "peers", "suspended", "limit", "duty")

SLOW_MINUTES: Final = 10
"""Consecutive minutes above the limit of a holder after which its owner is notified."""
WARNED_FOR: Final = timedelta(days=1)


class _Holder(NamedTuple):
    """The holder of a device, with the run ID of its member."""

    device_id: int
    number: int
    member_id: int
    run_id: str
    job_id: int
    is_gpu: bool
    device_type: str
    taken_at: datetime
    limit: float


class _Leases(NamedTuple):
    """Holders by device number, jobs of guests by device number and run ID, and equals."""

    holders: Mapping[int, _Holder]
    guests: Mapping[tuple[int, str], int]
    peers: frozenset[int]


def keep_shared(*, node_id: int, devices: Sequence[DeviceReading], now: datetime) -> int:
    """Store the state of each coordinator; returns the number of devices.

    A state is stored only for a device that the named run holds, and guests only if they have a
    lease of the device. A node can thus report nothing about jobs of other nodes.

    Args:
        node_id: the reporting node.
        devices: its newest readings, by device number.
        now: time to store.
    """
    newest = {device.index: device.company for device in devices if device.company is not None}
    if not newest:
        return 0
    leases = _leases(node_id, list(newest))
    rows, jobs = [], []
    suspensions: dict[int, SuspensionReading] = {}
    for index, company in newest.items():
        holder = leases.holders.get(index)
        if holder is None or holder.run_id != company.holder_run_id:
            continue
        jobs.append(holder)
        suspensions[holder.job_id] = company.suspension
        for guest in company.guests:
            if (index, guest.run_id) in leases.guests:
                suspensions[leases.guests[index, guest.run_id]] = guest.suspension
        rows.append(
            SharedDevice(
                device_id=holder.device_id,
                holder_id=holder.member_id,
                at=now,
                guests=[
                    {**guest.to_json(), "job": leases.guests[index, guest.run_id]}
                    for guest in company.guests
                    if (index, guest.run_id) in leases.guests
                ],
                **{name: getattr(company, name) for name in _COLUMNS},
            )
        )
    waiting = frozenset(job for job, one in suspensions.items() if one.now_for is not None)
    with transaction.atomic():
        _book_delays(jobs, rows, now)
        SharedDevice.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["device"],
            update_fields=["holder", "at", "guests", *_COLUMNS],
        )
        _keep_minutes(jobs, rows, _Company(leases.peers, waiting), now)
        _keep_suspensions(suspensions, now)
        slowed = {job.job_id for job, row in zip(jobs, rows, strict=True) if (row.loss or 0.0) > 0}
        for job_id in sorted(slowed):
            _warn_if_slowed(job_id, now)
    observe_pairs(_pairs(jobs, rows), now=now)
    return len(rows)


def _keep_suspensions(suspensions: Mapping[int, SuspensionReading], now: datetime) -> None:
    """Store how the running attempts of some jobs were suspended, and are now.

    A node cannot report a longer suspension than the attempt has existed.
    """
    told = {job: one for job, one in suspensions.items() if one.number or one.tier}
    if not told:
        return
    attempts = Attempt.objects.filter(job_id__in=told, ended_at=None).order_by("job_id")
    for attempt_id, job_id, begin in attempts.values_list("pk", "job_id", "created_at"):
        found, age = told[job_id], max((now - begin).total_seconds(), 0.0)
        current = None if found.now_for is None else timedelta(seconds=min(found.now_for, age))
        Attempt.objects.filter(pk=attempt_id, ended_at=None).update(
            suspended_by=found.tier,
            suspensions=found.number,
            suspended_seconds=min(found.seconds, age),
            suspended_since=None if current is None else now - current,
        )


def _warn_if_slowed(job_id: int, now: datetime) -> None:
    """Record an event if the loss of a holder was above its limit in each of the last minutes.

    In a pair the limit is that of an equal.
    """
    since = now.replace(second=0, microsecond=0) - SLOW_MINUTES * timedelta(minutes=1)
    newest = SharedMinute.objects.filter(job_id=job_id, minute__gt=since, loss__gt=F("limit"))
    above = dict(newest.order_by().values_list("minute").annotate(worst=Max("loss")))
    limit = newest.aggregate(most=Max("limit"))["most"]
    known = JobEvent.objects.filter(job_id=job_id, kind=SLOWED, at__gt=now - WARNED_FOR)
    if len(above) < SLOW_MINUTES or known.exists():
        return
    text = sentence(
        "slowed-by-guests",
        limit=format(100 * limit, ".0f"),
        minutes=SLOW_MINUTES,
        loss=format(100 * max(above.values()), ".1f"),
    )
    record_job_event(job_id=job_id, kind=SLOWED, now=now, note=Note(text=text))


def _leases(node_id: int, indices: Sequence[int]) -> _Leases:
    rows = Lease.objects.filter(
        device__node_id=node_id,
        device__index__in=indices,
        released_at=None,
        kind__in=(LeaseKind.GUEST, LeaseKind.USING),
    ).select_related("device", "attempt", "member")
    rows = rows.annotate(sharing=F("job__spec__sharing"))
    holders: dict[int, _Holder] = {}
    peers = frozenset(lease.device.index for lease in rows if lease.is_peer)
    guests: dict[tuple[int, str], int] = {}
    for lease in rows:
        member, index = lease.member, lease.device.index
        run_id = make_run_id(lease.attempt.uid, member.role, member.rank)
        if lease.kind == LeaseKind.GUEST:
            guests[index, run_id] = lease.job_id
        elif lease.kind == LeaseKind.USING:
            holders[index] = _Holder(
                lease.device_id,
                index,
                member.pk,
                run_id,
                lease.job_id,
                lease.device.is_gpu,
                lease.device.device_type,
                lease.taken_at,
                PEER_SLOWDOWN if index in peers else slowdown_of(lease.sharing),
            )
    return _Leases(holders, guests, peers)


def _book_delays(holders: Sequence[_Holder], rows: Sequence[SharedDevice], now: datetime) -> None:
    """Add the delay since the last report to the day of each holder.

    The devices of a member have one delay account. A node cannot report a longer delay than the
    time that has passed.
    """
    last: dict[int, tuple[float, datetime]] = {}
    known = SharedDevice.objects.filter(holder_id__in={holder.member_id for holder in holders})
    for member_id, seconds, at in known.values_list("holder_id", "delay_seconds", "at"):
        last[member_id] = max(last.get(member_id, (0.0, at)), (seconds, at))
    delays: dict[tuple[int, bool], float] = defaultdict(float)
    for member_id, (holder, row) in {
        holder.member_id: (holder, row) for holder, row in zip(holders, rows, strict=True)
    }.items():
        before, since = last.get(member_id, (0.0, holder.taken_at))
        passed = max((now - since).total_seconds(), 0.0)
        delays[holder.job_id, holder.is_gpu] += min(max(row.delay_seconds - before, 0.0), passed)
    day = now.astimezone(UTC).date()
    for (job_id, is_gpu), seconds in sorted(delays.items()):
        if not seconds:
            continue
        found, _ = GuestDelay.objects.get_or_create(job_id=job_id, day=day, is_gpu=is_gpu)
        GuestDelay.objects.filter(pk=found.pk).update(seconds=F("seconds") + seconds)


def _pairs(holders: Sequence[_Holder], rows: Sequence[SharedDevice]) -> Iterator[PairObservation]:
    """Yield the paces of holders with one guest each; those of several are not known apart.

    A node knows the time in which a guest works, not the pace that the guest has alone: the share
    of this time counts as its pace.
    """
    for holder, row in zip(holders, rows, strict=True):
        if row.loss is None or len(row.guests) != 1:
            continue
        (guest,) = row.guests
        if guest["duty"] is not None:
            paces = Paces(1.0 - max(0.0, row.loss), guest["duty"])
            yield PairObservation(holder.job_id, guest["job"], holder.device_type, paces)


class _Company(NamedTuple):
    """Numbers of the devices with equals, and the jobs that wait for their turn now."""

    peers: frozenset[int]
    waiting: frozenset[int]


def _keep_minutes(
    holders: Sequence[_Holder], rows: Sequence[SharedDevice], company: _Company, now: datetime
) -> None:
    """Replace the state of this minute in the history of each device."""
    minute = now.replace(second=0, microsecond=0)
    SharedMinute.objects.bulk_create(
        [
            SharedMinute(
                device_id=row.device_id,
                place=int(minute.timestamp() // 60) % SharedMinute.RING,
                job_id=holder.job_id,
                minute=minute,
                guests=len(row.guests),
                frozen=sum(bool(guest.get("frozen")) for guest in row.guests),
                peers=len(row.guests) if holder.number in company.peers else 0,
                suspended=sum(
                    job in company.waiting
                    for job in (holder.job_id, *(guest["job"] for guest in row.guests))
                ),
                limit=holder.limit,
                duty=row.guests[0].get("duty") if len(row.guests) == 1 else None,
                **{name: getattr(row, name) for name in _OF_MINUTES},
            )
            for holder, row in zip(holders, rows, strict=True)
        ],
        update_conflicts=True,
        unique_fields=["device", "place"],
        update_fields=["job", "minute", *_COUNTED, *_OF_MINUTES],
    )
