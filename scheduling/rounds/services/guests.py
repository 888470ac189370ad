"""Rows of guests in a round's commit: places that are still valid, and promotions."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from django.db import transaction

from scheduling.clusters.models import ClusterRules
from scheduling.core.messages import sentence
from scheduling.core.values import GuestStart, Start
from scheduling.enums import LeaseKind, MemberStep
from scheduling.jobs.services.lifecycle import Note, record_job_events
from scheduling.rounds.services.starts import GuestSeat
from scheduling.runs.models import Attempt, Lease
from scheduling.runs.services.gang_outcomes import tell_coordinators

PROMOTED: Final = "promoted"
"""Kind of the event of a guest that has become the holder of its device."""


def seats_now(guests: Sequence[GuestStart], device_ids: Mapping[str, int]) -> dict[int, GuestSeat]:
    """Return the place of each guest whose holder still runs, by job.

    The cluster's switch is read again: it may have been turned off since the snapshot.
    """
    if not guests or not ClusterRules.objects.filter(sharing=True).exists():
        return {}
    addresses = {guest.member.leaves[0].address for guest in guests}
    rows = Lease.objects.filter(
        released_at=None,
        kind=LeaseKind.USING,
        device_id__in=[device_ids[address] for address in addresses],
        member__step=MemberStep.RUNNING,
        member__stop_asked_at=None,
        job__sharing_stopped_at=None,
    )
    holders = {
        (address, job_id): member_id
        for address, job_id, member_id in rows.values_list(
            "device__address", "job_id", "member_id"
        )
    }
    found = {}
    for guest in guests:
        member = holders.get((guest.member.leaves[0].address, guest.holder))
        if member is not None:
            found[guest.job_id] = GuestSeat(start=guest, holder_member=member)
    return found


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
