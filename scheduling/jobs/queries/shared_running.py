"""Explanations of running jobs that share a device: guests, pairs of equals, and turns."""

from datetime import datetime, timedelta
from typing import Any, Final

from scheduling.core.lifecycle import JobState
from scheduling.core.messages import message
from scheduling.enums import JobClass, LeaseKind
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Lease, SharedDevice
from tessera.messages import Message

REPORT_AGE: Final = timedelta(minutes=3)
"""Age from which the last report of a coordinator is out of date."""


def shared_state(job: Job, now: datetime) -> Message | None:
    """Describe a running job that shares its device; None for any other job.

    Names of the other jobs are left out, since their tenant may be another one.
    """
    if job.state != JobState.RUNNING:
        return None
    if job.guest_floor is not None:
        return _as_guest(job, now)
    # Only jobs with one device are paired.
    is_single = job.job_class == JobClass.GUARANTEED and job.devices == 1
    return _as_peer(job, now) if is_single else None


def time_span(seconds: float) -> Message:
    """Describe a time of at least 0 s in two units."""
    hours, rest = divmod(int(seconds), 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return message("hours-minutes", hours=hours, minutes=minutes)
    if minutes:
        return message("minutes-seconds", minutes=minutes, seconds=left)
    return message("seconds", seconds=left)


def _as_guest(job: Job, now: datetime) -> Message | None:
    leases = Lease.objects.filter(job=job, released_at=None, kind=LeaseKind.GUEST)
    lease = leases.select_related("device__node", "device__shared").first()
    if lease is None:
        return None
    shared, place = _report(lease, now), _place(lease)
    if shared is None or shared.open is None:
        return message("running-as-guest", **place)
    return message(
        "running-as-guest-open",
        **place,
        open=format(shared.open, ".0%"),
        closings=message("closings", n=shared.closings),
    )


def _as_peer(job: Job, now: datetime) -> Message | None:
    device = Lease.objects.filter(job=job, released_at=None).values("device_id")
    leases = Lease.objects.filter(device_id__in=device, is_peer=True, released_at=None)
    found = list(
        leases.select_related("device__node", "device__shared", "beside__attempt", "attempt")
    )
    if not found:
        return None
    first = found[0]
    shared, place = _report(first, now), _place(first)
    if not first.turn_seconds:
        return message("running-in-a-pair", **place, n=len(found), pace=_pace(shared))
    # A job that is not beside the holder is the holder.
    mine = [lease.attempt for lease in found if lease.job_id == job.pk]
    attempts = mine or [lease.beside.attempt for lease in found if lease.beside is not None]
    return message(
        "running-in-turns",
        **place,
        n=len(found),
        turn=time_span(first.turn_seconds),
        state=_turn(attempts[0], shared, now),
    )


def _place(lease: Lease) -> dict[str, Any]:
    return {"index": lease.device.index, "node": lease.device.node.name}


def _report(lease: Lease, now: datetime) -> SharedDevice | None:
    """Return the newest report of the device if it is of the same holder and recent."""
    shared: SharedDevice | None = getattr(lease.device, "shared", None)
    if shared is None or shared.holder_id != lease.beside_id or now - shared.at > REPORT_AGE:
        return None
    return shared


def _pace(shared: SharedDevice | None) -> Message:
    duty = shared.guests[0].get("duty") if shared is not None and len(shared.guests) == 1 else None
    if shared is None or shared.loss is None or duty is None:
        return message("pair-not-measured")
    holder = format(min(max(1.0 - shared.loss, 0.0), 1.0), ".0%")
    return message("pair-pace", holder=holder, other=format(duty, ".0%"))


def _turn(attempt: Attempt, shared: SharedDevice | None, now: datetime) -> Message:
    if shared is None:
        return message("turn-unknown")
    if attempt.suspended_since is None:
        return message("turn-works")
    passed = max((now - attempt.suspended_since).total_seconds(), 0.0)
    return message("turn-suspended", tier=attempt.suspended_by, time=time_span(passed))
