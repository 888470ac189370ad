"""Jobs that have ended, with what they held: a few through the ORM, copied many times over."""

import uuid
from datetime import timedelta
from typing import Any, Final

FINISHED: Final = 100_000
_MODEL: Final = 1_000


def add_finished_jobs() -> None:
    """``FINISHED`` jobs that succeeded on the nodes there are; each had one member."""
    from django.db import transaction

    from scheduling.models import Attempt, Job, Lease, Member

    with transaction.atomic():
        first = {model: _next_id(model) for model in (Job, Attempt, Member, Lease)}
        _make_models()
        width = {model: _next_id(model) - first[model] for model in first}
        for copy in range(1, FINISHED // _MODEL):
            for model in first:
                _copy(model, copy=copy, first=first, width=width)


def _next_id(model: Any) -> int:
    from django.db.models import Max

    rows = model.objects.unscoped() if hasattr(model.objects, "unscoped") else model.objects
    return (rows.aggregate(newest=Max("pk"))["newest"] or 0) + 1


def _make_models() -> None:
    from scheduling.models import Attempt, Device, Job, Lease, Member
    from tests.factories.cluster import NOW

    devices = list(Device.objects.order_by("id"))
    samples = list(Job.objects.unscoped().order_by("id")[:_MODEL])
    jobs = []
    for number, sample in enumerate(samples):
        begun = NOW - timedelta(minutes=10 * number)
        sample.pk = None
        sample._state.adding = True
        sample.state, sample.reason_code = "succeeded", ""
        sample.submitted_at = begun - timedelta(minutes=5)
        sample.first_started_at = sample.started_at = begun
        sample.finished_at = sample.state_since = begun + timedelta(hours=1)
        sample.attempts_made, sample.exit_code = 1, 0
        jobs.append(sample)
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


def _copy(model: Any, *, copy: int, first: dict[Any, int], width: dict[Any, int]) -> None:
    """All rows of the first thousand jobs once more, with numbers of their own."""
    from django.db import connection

    names, values = [], []
    for column in model._meta.concrete_fields:
        quoted = connection.ops.quote_name(column.column)
        owner = model if column.primary_key else column.related_model
        names.append(quoted)
        if column.column == "uid":
            values.append(f"{quoted} || '{copy:08d}'")
        elif owner in first and column.column != "cloned_from_id":
            values.append(f"{quoted} + {copy * width[owner]}")
        else:
            values.append(quoted)
    table = connection.ops.quote_name(model._meta.db_table)
    low, high = first[model], first[model] + width[model]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)}"
            f" FROM {table} WHERE id >= {low} AND id < {high}"
        )
