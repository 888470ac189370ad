"""Rows of guests in a round's commit: places that are still valid, and promotions."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from django.db import transaction

from scheduling.clusters.models import ClusterRules
from scheduling.core.messages import sentence
from scheduling.core.sharing.hosts import Consent, SharingMode, consents, may_meet
from scheduling.core.values import GuestStart, Start
from scheduling.enums import JobClass, LeaseKind, MemberStep, NodeState
from scheduling.jobs.models import Job
from scheduling.jobs.services.lifecycle import Note, record_job_events
from scheduling.rounds.services.starts import GuestSeat
from scheduling.runs.models import Attempt, Lease
from scheduling.runs.services.gang_outcomes import tell_coordinators

PROMOTED: Final = "promoted"
"""Kind of the event of a guest that has become the holder of its device."""


def seats_now(guests: Sequence[GuestStart], device_ids: Mapping[str, int]) -> dict[int, GuestSeat]:
    """Return the place of each guest whose holder still runs and still allows it, by job.

    Switches, consent, isolation and the guest itself are read again: people may have changed them
    since the snapshot.
    """
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
    willing = dict(
        Job.objects.unscoped()
        .filter(
            pk__in=[guest.job_id for guest in guests],
            job_class=JobClass.OPPORTUNISTIC,
            guest_floor__isnull=False,
        )
        .values_list("pk", "tenant_id")
    )
    found = {}
    for guest in guests:
        lease = holders.get((guest.member.leaves[0].address, guest.holder))
        tenant = willing.get(guest.job_id)
        if lease is not None and tenant is not None and _admits(lease, guest, tenant):
            found[guest.job_id] = GuestSeat(start=guest, holder_member=lease.member_id)
    return found


def _admits(lease: Lease, guest: GuestStart, tenant: int) -> bool:
    """Return whether the holder's lease admits a guest of a tenant now."""
    job, device = lease.job, lease.device
    if guest.mode not in device.sharing_modes or guest.slot > job.virtual_cluster.max_guests:
        return False
    consent = Consent.strictest(
        (job.spec.get("sharing") or {}).get("guests", job.virtual_cluster.guests_default),
        device.guests,
        device.node.guests,
    )
    return consents(consent, job.tenant_id, tenant) and (
        job.tenant_id == tenant or may_meet(device.node.isolation_level, SharingMode(guest.mode))
    )


def start_of(seat: GuestSeat) -> Start:
    """Return the start of a guest, which binds no virtual cell."""
    return Start(job_id=seat.start.job_id, opportunistic=True, members=(seat.start.member,))


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
