"""Jobs in every state, as rounds and nodes would have left them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from scheduling.clusters.models import Device, Node
from scheduling.core.lifecycle import TERMINAL
from scheduling.jobs.models import Job, JobEvent
from scheduling.runs.models import Attempt, Lease, Member

FIRST_PORT = 30_000


def run_attempt(
    job: Job,
    node: Node,
    *,
    now: datetime,
    devices: Sequence[int] = (0,),
    ended: bool = False,
    exit_code: int | None = None,
) -> Attempt:
    """An attempt of ``job`` with one member on ``node``, begun a minute ago."""
    begun = now - timedelta(minutes=1)
    number = job.attempts_made + 1
    attempt = Attempt.objects.create(
        job=job,
        number=number,
        uid=f"{job.pk:016d}{number:016d}",
        round_number=number,
        port=FIRST_PORT + job.pk * 10 + number,
        created_at=begun,
        running_at=begun,
        ended_at=now if ended else None,
        exit_code=exit_code,
    )
    member = Member.objects.create(
        attempt=attempt,
        node=node,
        role="worker",
        rank=0,
        node_rank=0,
        devices=list(devices),
        step="exited" if ended else "running",
        step_since=begun,
        started_at=begun,
        exited_at=now if ended else None,
        exit_code=exit_code,
    )
    for index in devices:
        Lease.objects.create(
            device=Device.objects.get(node=node, index=index),
            attempt=attempt,
            member=member,
            job=job,
            taken_at=begun,
            released_at=now if ended else None,
        )
    Job.objects.unscoped().filter(pk=job.pk).update(attempts_made=number)
    job.attempts_made = number
    return attempt


def put_into(job: Job, state: str, *, now: datetime, **columns: object) -> Job:
    """The job in ``state`` since a minute, with the event that says so."""
    since = now - timedelta(minutes=1)
    values: dict[str, object] = {"state": state, "state_since": since, "started_at": since}
    if state in TERMINAL:
        values["finished_at"] = now
    if state == "queued":
        values["started_at"] = None
    Job.objects.unscoped().filter(pk=job.pk).update(**{**values, **columns})
    JobEvent.objects.create(job=job, at=since, kind="test", state=state, attempt=1)
    job.refresh_from_db()
    return job


def ran(job: Job, since: datetime | None = None, until: datetime | None = None) -> None:
    """Move the begin and the end of what the devices of ``job`` are charged for."""
    leases, members = Lease.objects.filter(job=job), Member.objects.filter(attempt__job=job)
    if since is not None:
        leases.update(taken_at=since)
        members.update(started_at=since)
    if until is not None:
        leases.update(released_at=until)
        members.update(exited_at=until)
