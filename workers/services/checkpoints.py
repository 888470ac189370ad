"""Locations of the checkpoints of jobs that are to resume."""

from collections.abc import Iterable, Mapping

from django.db.models import OuterRef, Subquery

from scheduling.jobs.models import JobEvent
from scheduling.runs.models import Attempt, Member
from workers.transports.base import LastSaved

CHECKPOINT = "checkpoint"


def last_saved(attempts: Iterable[Attempt]) -> Mapping[int, LastSaved]:
    """Return the last reported checkpoints before these attempts, by attempt.

    The first process of a gang saves, so a checkpoint is on the node of its first member.
    """
    again = {attempt.pk: attempt for attempt in attempts if attempt.number > 1}
    if not again:
        return {}
    told = JobEvent.objects.filter(
        job=OuterRef("job"), kind=CHECKPOINT, attempt__lt=OuterRef("number")
    ).order_by("-id")
    newest = dict(
        Attempt.objects.filter(pk__in=list(again))
        .annotate(told=Subquery(told.values("id")[:1]))
        .filter(told__isnull=False)
        .values_list("pk", "told")
    )
    events = JobEvent.objects.in_bulk(list(newest.values()))
    nodes = _first_nodes(events.values())
    found = {}
    for pk, event_id in newest.items():
        event = events[event_id]
        where = nodes.get((event.job_id, event.attempt))
        step, sha256 = event.detail.get("step"), event.detail.get("sha256")
        if where is None or not isinstance(step, int) or not isinstance(sha256, str):
            continue
        found[pk] = LastSaved(node_id=where[0], node=where[1], step=step, sha256=sha256)
    return found


def is_to_leave(member_id: int) -> bool:
    """Whether a member has been asked to leave."""
    return not Member.objects.filter(pk=member_id, stop_asked_at=None).exists()


def _first_nodes(
    events: Iterable[JobEvent],
) -> Mapping[tuple[int, int | None], tuple[int, str]]:
    """Row and name of the node of the first member, by the job and attempt of the event."""
    members = Member.objects.filter(
        node_rank=0,
        attempt__job__in={event.job_id for event in events},
        attempt__number__in={event.attempt for event in events},
    ).values_list("attempt__job_id", "attempt__number", "node_id", "node__name")
    return {(job, number): (node_id, name) for job, number, node_id, name in members}
