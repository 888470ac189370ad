"""Sums of progress, events and device use of running attempts, for models and policies."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import F, Subquery

from scheduling.clusters.models import ClusterRules, VirtualCluster
from scheduling.core.performance.losses import with_loss
from scheduling.core.round.policy_answers import PLAIN
from scheduling.enums import LeaseKind
from scheduling.jobs.models import CHECKPOINT, Job, JobEvent
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.runs.models import Attempt, AttemptProgress, AttemptUse, Lease, Member, StepTally

MOST_KINDS: Final = 64
"""Maximum number of step kinds in one attempt: bounds the rows of a job that varies its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """The newest interval of an attempt's first rank.

    Attributes:
        seconds: duration of the interval.
        steps: number of steps in it.
        step: number of the newest step.
        loss: loss of the newest step; None if not reported.
        batch: samples of a step over all ranks; None if not reported.
        accumulation: micro-batches of each process in a step.
        noise: squared norm and variance of the gradient at the initial batch.
        kinds: batch, accumulation, number of steps and their seconds, for each batch.
        parameters: bytes of the largest parameter tensor and of all; None if not reported.
    """

    seconds: float
    steps: int
    step: int
    loss: float | None
    batch: int | None = None
    accumulation: int = 1
    noise: tuple[float, float] | None = None
    kinds: Sequence[tuple[int, int, int, float]] = ()
    parameters: tuple[int, int] | None = None


def add_attempt_progress(*, attempt_id: int, samples: float, leading: Leading | None) -> None:
    """Add one rank's newest interval to the sums of its attempt.

    Args:
        attempt_id: ID of the attempt.
        samples: number of samples that the rank has processed.
        leading: further values of the first rank; None for other ranks.
    """
    changes: dict[str, Any] = {"samples": F("samples") + samples}
    if leading is not None:
        changes |= {
            "seconds": F("seconds") + leading.seconds,
            "steps": F("steps") + leading.steps,
            "last_step": leading.step,
            "loss": leading.loss,
        }
        if leading.batch is not None:
            changes |= {"batch": leading.batch, "accumulation": leading.accumulation}
        if leading.noise is not None:
            changes |= {"noise_square": leading.noise[0], "noise_variance": leading.noise[1]}
        if leading.parameters is not None:
            largest, total = leading.parameters
            changes |= {"largest_parameter": largest, "parameter_bytes": total}
    rows = AttemptProgress.objects.filter(pk=attempt_id)
    if leading is not None and leading.loss is not None:
        known = rows.values_list("losses", flat=True).first()
        losses = with_loss(known or (), leading.step, leading.loss)
        changes |= {} if losses is None else {"losses": losses}
    if not rows.update(**changes):
        AttemptProgress.objects.get_or_create(attempt_id=attempt_id)
        rows.update(**changes)
    for kind in leading.kinds if leading is not None else ():
        _add_kind(attempt_id, *kind)


def _add_kind(attempt_id: int, batch: int, accumulation: int, steps: int, seconds: float) -> None:
    there = StepTally.objects.filter(attempt_id=attempt_id)
    kind = there.filter(batch=batch, accumulation=accumulation)
    more = {"steps": F("steps") + steps, "seconds": F("seconds") + seconds}
    if kind.update(**more) or there.count() >= MOST_KINDS:
        return
    StepTally.objects.get_or_create(attempt_id=attempt_id, batch=batch, accumulation=accumulation)
    kind.update(**more)


def initial_batch_of(job_id: int) -> int | None:
    """Return the batch for which a job's learning rate was chosen; None for a fixed batch."""
    terms = Job.objects.unscoped().filter(pk=job_id).values_list("terms", flat=True).first()
    batches = (terms or {}).get("batch")
    return int(batches[0]) if batches else None


MOST_OF_AN_ATTEMPT: Final = 500
"""Maximum number of events of one kind; bounds the rows of a job that saves every second.

The newest event is always stored: it determines the resume point and the lost work."""


@transaction.atomic
def record_training_events(
    *,
    job_id: int,
    attempt: int,
    notes: Sequence[tuple[str, str, Mapping[str, Any]]],
    now: datetime,
) -> None:
    """Add events to the job unless they exist already.

    Args:
        job_id: ID of the job.
        attempt: number of the attempt.
        notes: kind, text and facts of each event.
        now: time at which the node reported them.
    """
    rows = JobEvent.objects.filter(job_id=job_id, attempt=attempt)
    has_saved = False
    for kind in dict.fromkeys(kind for kind, _, _ in notes):
        there = list(rows.filter(kind=kind).values_list("text", flat=True))
        for text, facts in ((text, facts) for found, text, facts in notes if found == kind):
            if text[:500] in there:
                continue
            if len(there) >= MOST_OF_AN_ATTEMPT:
                rows.filter(kind=kind).latest("id").delete()
            there.append(text[:500])
            note = Note(attempt=attempt, text=text, detail=dict(facts))
            record_job_event(job_id=job_id, kind=kind, now=now, note=note)
            has_saved |= kind == CHECKPOINT
    if has_saved:  # less work is at risk now; rounds choose victims by the work at risk
        running = Job.objects.unscoped().filter(pk=job_id, attempts_made=attempt)
        running.update(saved_at=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A running attempt with its measured use so far.

    Attributes:
        since: minutes before this time are ignored or already counted.
        members: node ID and device indices of each of its members.
        minutes: number of counted minutes.
        busy: mean busy share of its devices; None without reports.
        memory_peak: highest memory use of one device in bytes; None without reports.
    """

    attempt_id: int
    since: datetime
    members: tuple[tuple[int, tuple[int, ...]], ...] = ()
    minutes: int = 0
    busy: float | None = None
    memory_peak: int | None = None


def followed_attempts() -> list[Used]:
    """Return running attempts whose use is read; at most three queries.

    Policies and shadow policies read job facts. In a cluster that shares devices, rounds read the
    memory peak of holders. While guests are on a device, its load is not that of one job.
    """
    rows = VirtualCluster.objects.unscoped().filter(archived_at=None)
    rows = rows.annotate(shares=Subquery(ClusterRules.objects.values("sharing")[:1]))
    curious = [
        pk
        for pk, policy, args, shadows, shares in rows.values_list(
            "pk", "policy", "policy_args", "shadows", "shares"
        )
        if policy != PLAIN or args.get("wrap") or shadows or shares
    ]
    if not curious:
        return []
    running = Attempt.objects.filter(
        job__virtual_cluster__in=curious, ended_at=None, running_at__isnull=False
    )
    guests = Lease.objects.filter(kind=LeaseKind.GUEST, released_at=None)
    running = running.exclude(pk__in=guests.values("attempt_id"))
    running = running.exclude(pk__in=guests.values("beside__attempt_id"))
    members: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for attempt_id, node_id, devices in (
        Member.objects.filter(attempt__in=running.values("pk"))
        .order_by("attempt_id", "node_rank")
        .values_list("attempt_id", "node_id", "devices")
    ):
        if devices:
            members[attempt_id].append((node_id, tuple(devices)))
    columns = ("pk", "running_at", "use__until", "use__minutes", "use__busy", "use__memory_peak")
    return [
        Used(
            attempt_id=pk,
            since=until or running_at,
            members=tuple(members[pk]),
            minutes=minutes or 0,
            busy=busy,
            memory_peak=peak,
        )
        for pk, running_at, until, minutes, busy, peak in running.order_by("pk").values_list(
            *columns
        )
        if running_at is not None and pk in members
    ]


def keep_uses(uses: Iterable[Used]) -> None:
    """Store the sums; ``since`` is the end of the counted time."""
    AttemptUse.objects.bulk_create(
        (
            AttemptUse(
                attempt_id=one.attempt_id,
                until=one.since,
                minutes=one.minutes,
                busy=one.busy,
                memory_peak=one.memory_peak,
            )
            for one in uses
        ),
        update_conflicts=True,
        unique_fields=["attempt"],
        update_fields=["until", "minutes", "busy", "memory_peak"],
    )
