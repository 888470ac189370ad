"""Synthetic finished jobs with leases: the first thousand through the ORM, copies in SQL."""

import uuid
from collections.abc import Mapping
from copy import copy
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.management.color import no_style
from django.db import connection, transaction
from django.db.models import Max
from django.db.models.base import ModelState

from scheduling.clusters.models import Device
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Lease, Member

FINISHED: Final = 100_000
_MODEL: Final = 1_000


def add_finished_jobs(*, now: datetime, count: int = FINISHED) -> None:
    """Create succeeded jobs of one member on existing nodes, ended before ``now``.

    Args:
        now: shortly after the end of the newest job.
        count: number of jobs, in whole thousands; specifications are those of the first live jobs.
    """
    with transaction.atomic():
        first = {model: _next_id(model) for model in (Job, Attempt, Member, Lease)}
        _make_models(now)
        width = {model: _next_id(model) - first[model] for model in first}
        for again in range(1, count // _MODEL):
            for model in first:
                _copy(model, again=again, first=first, width=width)
        # PostgreSQL's sequences do not count explicit primary keys.
        with connection.cursor() as cursor:
            for statement in connection.ops.sequence_reset_sql(no_style(), list(first)):
                cursor.execute(statement)


def _next_id(model: Any) -> int:
    rows = model.objects.unscoped() if hasattr(model.objects, "unscoped") else model.objects
    return (rows.aggregate(newest=Max("pk"))["newest"] or 0) + 1


def _make_models(now: datetime) -> None:
    jobs = _finished_jobs(now)
    Job.objects.unscoped().bulk_create(jobs)
    attempts = Attempt.objects.bulk_create(
        Attempt(
            job=job,
            number=1,
            uid=uuid.uuid4().hex[:24],
            round_number=1,
            port=20_000,
            created_at=job.submitted_at,
            running_at=job.started_at,
            ended_at=job.finished_at,
            outcome="succeeded",
            exit_code=0,
        )
        for job in jobs
    )
    _hold_devices(attempts)


def _finished_jobs(now: datetime) -> list[Job]:
    jobs = []
    samples = list(Job.objects.unscoped().order_by("id")[:_MODEL])
    for number in range(_MODEL):
        sample = copy(samples[number % len(samples)])
        begun = now - timedelta(hours=1, minutes=10 * (number + 1))
        sample.pk = None
        sample._state = ModelState()
        sample.state, sample.reason_code, sample.reason_text, sample.reason = (
            "succeeded",
            "",
            "",
            {},
        )
        sample.submitted_at = begun - timedelta(minutes=5)
        sample.first_started_at = sample.started_at = begun
        sample.finished_at = sample.state_since = begun + timedelta(hours=1)
        sample.attempts_made, sample.exit_code = 1, 0
        jobs.append(sample)
    return jobs


def _hold_devices(attempts: list[Attempt]) -> None:
    devices = list(Device.objects.order_by("id"))
    held = [devices[(8 * n) % len(devices) :][: a.job.devices] for n, a in enumerate(attempts)]
    members = Member.objects.bulk_create(
        Member(
            attempt=attempt,
            node_id=mine[0].node_id,
            role="worker",
            rank=0,
            node_rank=0,
            devices=[device.index for device in mine],
            step="released",
            step_since=attempt.created_at,
            started_at=attempt.running_at,
            exited_at=attempt.ended_at,
            removed_at=attempt.ended_at,
            exit_code=0,
        )
        for attempt, mine in zip(attempts, held, strict=True)
    )
    Lease.objects.bulk_create(
        Lease(
            device=device,
            attempt=member.attempt,
            member=member,
            job_id=member.attempt.job_id,
            virtual_cell="",
            taken_at=member.attempt.created_at,
            released_at=member.attempt.ended_at,
        )
        for member, mine in zip(members, held, strict=True)
        for device in mine
    )


def _copy(model: Any, *, again: int, first: Mapping[Any, int], width: Mapping[Any, int]) -> None:
    """Copy all rows of the first thousand jobs with new primary keys."""
    names, values = [], []
    for column in model._meta.concrete_fields:
        quoted = connection.ops.quote_name(column.column)
        owner = model if column.primary_key else column.related_model
        names.append(quoted)
        if column.column == "uid":
            values.append(f"{quoted} || '{again:08d}'")
        elif owner in first and column.column != "cloned_from_id":
            values.append(f"{quoted} + {again * width[owner]}")
        else:
            values.append(quoted)
    table = connection.ops.quote_name(model._meta.db_table)
    low, high = first[model], first[model] + width[model]
    with connection.cursor() as cursor:
        cursor.execute(
            # The statement consists of column names and integers, without user input.
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)}"  # noqa: S608
            f" FROM {table} WHERE id >= {low} AND id < {high}"
        )
