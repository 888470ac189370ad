"""Parameters and tags of MLflow runs in a job's reports, which are untrusted (ADR 99)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import transaction

from workers.models import TrackedRun
from workers.services.dispatch import MemberRef
from workers.services.points import MOST_PROCESSES
from workers.services.reports import LONGEST_LINE

EVENT: Final = "tracked-run"
MOST_RUNS: Final = 64
"""Runs of a job; later ones are dropped."""
MOST_AT_ONCE: Final = 32
MOST_PARAMETERS: Final = 200
MOST_TAGS: Final = 100
LONGEST_KEY: Final = 250
LONGEST_VALUE: Final = 500
LONGEST_NAME: Final = 200
STATUSES: Final = ("running", "scheduled", "finished", "failed", "killed")
_KEY: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True, kw_only=True)
class TrackedChange:
    """Changes of one MLflow run since the last sum."""

    key: str
    process: int
    name: str
    status: str
    parameters: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


def read_tracked_line(line: bytes) -> TrackedChange | None:
    """Return the change in a line of a job's reports; None if it has none."""
    if len(line) > LONGEST_LINE or b'"tracked-run"' not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("event") != EVENT:
        return None
    key, process = found.get("run"), found.get("process")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        return None
    if type(process) is not int or not 0 <= process < MOST_PROCESSES:
        return None
    status = found.get("status")
    return TrackedChange(
        key=key,
        process=process,
        name=_plain(found.get("name"), LONGEST_NAME),
        status=status if status in STATUSES else STATUSES[0],
        parameters=_texts(found.get("params"), MOST_PARAMETERS),
        tags=_texts(found.get("tags"), MOST_TAGS),
    )


def _texts(found: object, most: int) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    items = list(found.items())[:most]
    return {_plain(key, LONGEST_KEY): _plain(value, LONGEST_VALUE) for key, value in items if key}


def _plain(value: object, most: int) -> str:
    text = value[:most] if isinstance(value, str) else ""
    return "".join(c if c.isprintable() else " " for c in text)


class TrackedTally:
    """Collects changes between two sums, merged by run."""

    def __init__(self) -> None:
        self._found: dict[str, TrackedChange] = {}

    def add(self, change: TrackedChange) -> None:
        """Add a change; runs above the bound are dropped."""
        known = self._found.get(change.key)
        if known is not None:
            known.name, known.status = change.name, change.status
            known.parameters.update(change.parameters)
            known.tags.update(change.tags)
        elif len(self._found) < MOST_AT_ONCE:
            self._found[change.key] = change

    def take(self) -> tuple[TrackedChange, ...]:
        """Return all changes since the last call."""
        found, self._found = tuple(self._found.values()), {}
        return found


@transaction.atomic
def record_tracked(*, rank: MemberRef, changes: Sequence[TrackedChange]) -> None:
    """Merge changes into the runs of a rank; repeated changes have no effect."""
    mine = TrackedRun.objects.filter(job_id=rank.job_id, role=rank.role, rank=rank.rank)
    rows = {row.key: row for row in mine.select_for_update()}
    left = MOST_RUNS - TrackedRun.objects.filter(job_id=rank.job_id).count()
    for change in changes:
        row = rows.get(change.key)
        if row is None:
            if left <= 0:
                continue
            left -= 1
            row = TrackedRun(job_id=rank.job_id, role=rank.role, rank=rank.rank, key=change.key)
        row.attempt, row.process = rank.attempt_number, change.process
        row.name, row.status = change.name or row.name, change.status
        row.parameters = _merged(row.parameters, change.parameters, MOST_PARAMETERS)
        row.tags = _merged(row.tags, change.tags, MOST_TAGS)
        row.save()


def _merged(known: Mapping[str, Any], found: Mapping[str, str], most: int) -> dict[str, Any]:
    """Return known and changed values; an empty tag was deleted, and newer keys need room."""
    merged = {**known, **found}
    return dict(list(merged.items())[:most])
