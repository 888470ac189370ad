"""Charges of attempts that end: device-seconds, seconds as a guest, and CPU-seconds."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db.models import F

from scheduling.core.charging import charged_seconds
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, CpuLease, Member
from scheduling.runs.queries.shared_charges import charges_of_attempts

Gangs = Mapping[int, Sequence[Member]]
"""Members by attempt."""


def charged_at_end(attempts: Sequence[Attempt], gangs: Gangs, now: datetime) -> dict[int, float]:
    """Return the charged device-seconds by job, and add the seconds of guests to their jobs.

    Args:
        attempts: attempts that end.
        gangs: their members.
        now: end of a process whose end is unknown.
    """
    used = {attempt.job_id: _device_seconds(attempt, gangs, now) for attempt in attempts}
    used |= _shared_seconds(attempts, gangs, now)
    free = [attempt for attempt in attempts if attempt.is_guest and not attempt.is_peer]
    _add_guest_seconds(free, gangs, now)
    return used


def _add_guest_seconds(attempts: Sequence[Attempt], gangs: Gangs, now: datetime) -> None:
    """Add the seconds that attempts have run as guests, which are not charged, to their jobs."""
    for attempt in attempts:
        seconds = sum(
            charged_seconds(
                member.started_at,
                attempt.promoted_at or member.exited_at,
                until=now,
            )
            for member in gangs[attempt.pk]
        )
        jobs = Job.objects.unscoped().filter(pk=attempt.job_id)
        jobs.update(guest_seconds=F("guest_seconds") + seconds)


def _shared_seconds(attempts: Sequence[Attempt], gangs: Gangs, now: datetime) -> dict[int, float]:
    """Return the charged device-seconds of attempts with equals on their device, by job."""
    shared = {
        attempt.pk: attempt.job_id
        for attempt in attempts
        if attempt.is_peer or any(member.share_version for member in gangs[attempt.pk])
    }
    charges = charges_of_attempts(shared.keys(), until=now) if shared else {}
    return {shared[pk]: seconds for pk, seconds in charges.items()}


def _device_seconds(attempt: Attempt, gangs: Gangs, now: datetime) -> float:
    """Return the charged device-seconds; a guest is charged only after its promotion."""
    if attempt.is_guest and attempt.promoted_at is None:
        return 0.0
    return sum(
        len(member.devices)
        * charged_seconds(
            member.started_at, member.exited_at, until=now, since=attempt.promoted_at
        )
        for member in gangs[attempt.pk]
    )


def end_cpu_leases(attempts: Sequence[Attempt], gangs: Gangs, now: datetime) -> None:
    """Release the CPUs of jobs without devices, and charge them to their jobs."""
    if not attempts:
        return
    leases = CpuLease.objects.filter(attempt_id__in=[one.pk for one in attempts])
    cpus = dict(leases.values_list("member_id", "cpus"))
    leases.filter(released_at=None).update(released_at=now)
    for attempt in attempts:
        seconds = sum(
            cpus.get(member.pk, 0.0)
            * charged_seconds(member.started_at, member.exited_at, until=now)
            for member in gangs[attempt.pk]
        )
        if seconds:
            job = Job.objects.unscoped().filter(pk=attempt.job_id)
            job.update(cpu_seconds=F("cpu_seconds") + seconds)
