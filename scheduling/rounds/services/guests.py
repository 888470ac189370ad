"""Rows of guests in a round's commit: places that are still valid, and promotions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from scheduling.clusters.models import ClusterRules
from scheduling.core.messages import sentence
from scheduling.core.notices import PROMOTED
from scheduling.core.round_result import GuestStart, PeerStart, Start
from scheduling.core.sharing.hosts import MOST_GUESTS, Consent, SharingMode, consents, may_meet
from scheduling.enums import JobClass, LeaseKind, MemberStep, NodeState
from scheduling.jobs.models import Job
from scheduling.jobs.services.lifecycle import Note, record_job_events
from scheduling.rounds.services.starts import GuestSeat
from scheduling.runs.models import Attempt, Lease
from scheduling.runs.services.gang_outcomes import tell_coordinators


def seats_now(
    guests: Sequence[GuestStart],
    device_ids: Mapping[str, int],
    peers: Sequence[PeerStart] = (),
) -> dict[int, GuestSeat]:
    """Return the place of each guest whose holder still runs and still allows it, by job.

    Switches, consent, isolation and the guest itself are read again: people may have changed them
    since the snapshot.

    Args:
        guests: opportunistic jobs that start as guests.
        device_ids: primary key of the device by leaf address.
        peers: jobs that their policies pair with the holder.
    """
    turns = {peer.seat.job_id: peer.turn_seconds for peer in peers}
    guests = [*guests, *(peer.seat for peer in peers)]
    if not guests or not ClusterRules.objects.filter(sharing=True).exists():
        return {}
    addresses = {guest.member.leaves[0].address for guest in guests}
    rows = Lease.objects.filter(
        released_at=None,
        kind=LeaseKind.USING,
        device_id__in=[device_ids[address] for address in addresses],
        device__healthy=True,
        device__node__state=NodeState.READY,
        member__step=MemberStep.RUNNING,
        member__stop_asked_at=None,
        job__job_class=JobClass.GUARANTEED,
        job__sharing_stopped_at=None,
    )
    holders = {
        (lease.device.address, lease.job_id): lease
        for lease in rows.select_related("device__node", "job__virtual_cluster")
    }
    ids = [guest.job_id for guest in guests]
    willing = {job.pk: job for job in _willing(ids, turns) if _consents(job, turns)}
    found = {}
    for guest in guests:
        lease = holders.get((guest.member.leaves[0].address, guest.holder))
        job, is_peer = willing.get(guest.job_id), guest.job_id in turns
        if lease is None or job is None:
            continue
        most = lease.job.virtual_cluster.max_guests
        if not _admits(lease, guest, job.tenant_id, MOST_GUESTS if is_peer and most else most):
            continue
        if not is_peer or lease.job.virtual_cluster_id == job.virtual_cluster_id:
            found[guest.job_id] = GuestSeat(
                start=guest,
                holder_member=lease.member_id,
                is_peer=is_peer,
                turn_seconds=turns.get(guest.job_id, 0.0),
            )
    return found


def _willing(ids: Sequence[int], peers: Collection[int]) -> Iterable[Job]:
    """Return the jobs that may run on a device of another one: guests, and equals of holders."""
    is_guest = Q(job_class=JobClass.OPPORTUNISTIC, guest_floor__isnull=False)
    is_peer = Q(pk__in=peers, job_class=JobClass.GUARANTEED, sharing_stopped_at=None)
    rows = Job.objects.unscoped().filter(is_guest | is_peer, pk__in=ids)
    return rows.select_related("virtual_cluster").only(
        "tenant_id", "spec", "virtual_cluster__guests_default"
    )


def _consents(job: Job, peers: Collection[int]) -> bool:
    """Return whether a job with a guarantee allows other jobs on its device."""
    return job.pk not in peers or _consent(job) != Consent.NONE


def _consent(job: Job) -> str:
    default = job.virtual_cluster.guests_default
    return str((job.spec.get("sharing") or {}).get("guests", default))


def _admits(lease: Lease, guest: GuestStart, tenant: int, most: int) -> bool:
    """Return whether the holder's lease admits a guest of a tenant, one of at most ``most``."""
    job, device = lease.job, lease.device
    if guest.mode not in device.sharing_modes or guest.slot > most:
        return False
    consent = Consent.strictest(
        _consent(job),
        device.guests,
        device.node.guests,
    )
    return consents(consent, job.tenant_id, tenant) and (
        job.tenant_id == tenant or may_meet(device.node.isolation_level, SharingMode(guest.mode))
    )


def start_of(seat: GuestSeat) -> Start:
    """Return the start of a job on the device of another one, which binds no virtual cell."""
    return Start(
        job_id=seat.start.job_id,
        opportunistic=not seat.is_peer,
        members=(seat.start.member,),
    )


def promote_guests(jobs: Collection[int], *, round_number: int, now: datetime) -> tuple[int, ...]:
    """Make guests the holders of their devices, without a restart; return the promoted jobs.

    The guest's lease ends and a lease of slot 0 begins, from which the device is charged.
    """
    if not jobs:
        return ()
    promoted: dict[int, Note] = {}
    leases = Lease.objects.filter(job_id__in=jobs, kind=LeaseKind.GUEST, released_at=None)
    for lease in leases.select_related("attempt", "device").order_by("device_id", "slot"):
        with transaction.atomic():
            taken = Lease.objects.filter(
                device_id=lease.device_id, kind=LeaseKind.USING, released_at=None
            )
            mine = Lease.objects.filter(pk=lease.pk, released_at=None)
            if taken.exists() or not mine.update(released_at=now):
                continue
            Lease.objects.create(
                device_id=lease.device_id,
                attempt_id=lease.attempt_id,
                member_id=lease.member_id,
                job_id=lease.job_id,
                taken_at=now,
            )
            Attempt.objects.filter(pk=lease.attempt_id).update(promoted_at=now)
        tell_coordinators([lease.member_id])
        promoted[lease.job_id] = Note(
            text=sentence("guest-promoted", device=lease.device.address),
            attempt=lease.attempt.number,
            detail={"round": round_number},
        )
    if promoted:
        record_job_events(notes=promoted, kind=PROMOTED, now=now)
    return tuple(promoted)
