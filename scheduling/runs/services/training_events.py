"""What a job's training tells of itself, kept with the job's events."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from scheduling.jobs.models import Job, JobEvent
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.runs.services.receipts import CHECKPOINT

MOST_OF_AN_ATTEMPT: Final = 500
"""Of one kind; a job that saves every second must not fill the database.

The newest is always among them: it says where training goes on, and what was lost."""


@transaction.atomic
def record_training_events(
    *,
    job_id: int,
    attempt: int,
    notes: Sequence[tuple[str, str, Mapping[str, Any]]],
    now: datetime,
) -> None:
    """Add lines to the job's events; one that is there already is not added again.

    Args:
        job_id: whose.
        attempt: its number.
        notes: kind, a line for people, facts.
        now: when they were heard.
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
    if has_saved:  # less of its work is at stake: rounds choose their victims by that
        running = Job.objects.unscoped().filter(pk=job_id, attempts_made=attempt)
        running.update(saved_at=now)
