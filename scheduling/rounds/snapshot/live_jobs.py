"""Live jobs of a snapshot, parsed again only after a change.

In a cluster with 10,000 waiting jobs, few change between two rounds. Rows are read without a
conversion per field, and an unchanged row returns its cached value. Values are frozen, so rounds
can share them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import JobState
from scheduling.core.round.claims import read_claims
from scheduling.core.values import HeldLeaf, HoldingJob, QueuedJob
from scheduling.jobs.models import Job
from tessera.reasons import ReasonCode

Key = TypeVar("Key", bound=tuple[Any, ...])
Value = TypeVar("Value")

LEAVING: Final = frozenset({JobState.PREEMPTING.value, JobState.STOPPING.value})
ENDED_BADLY: Final = frozenset({JobState.FAILED.value, JobState.STOPPED.value})
YES: Final = frozenset({"1", "true"})
"""Spellings of true by database: SQLite, PostgreSQL."""
_TEXTS: Final = {
    "demand_text": "demand",
    "submitted_at_text": "submitted_at",
    "state_since_text": "state_since",
    "not_before_text": "not_before",
    "backoff_until_text": "backoff_until",
    "saved_at_text": "saved_at",
    "excluded_nodes_text": "excluded_nodes",
    "reason_json": "reason",
    "held_text": "held",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReason:
    """The stored reason of a queued job, for comparison with its new reason.

    The English text is not compared, since ``detail`` has the code and parameters of the message.
    """

    code: str
    detail: Mapping[str, Any]


class LiveJobRow(NamedTuple):
    """Columns of a job as the database returns them: numbers and text only."""

    id: int
    virtual_cluster_id: int
    tenant_id: int
    owner_id: int
    owner__username: str
    priority: int
    job_class: str
    state: str
    held_text: str
    demand_text: str
    submitted_at_text: str
    state_since_text: str
    not_before_text: str | None
    backoff_until_text: str | None
    saved_at_text: str | None
    excluded_nodes_text: str
    model_fingerprint: str
    devices: int
    reason_code: str
    reason_json: str


_Facts = tuple[Any, ...]
"""A row without its reason, which may change in each round."""
_FACTS: Final = -2
_WITH_VICTIMS: Final = frozenset({"", ReasonCode.WAITING_VICTIM_CHECKPOINT.value})
"""Codes of reasons with victims or claims, which ``QueuedJob`` contains."""
_WaitingKey = tuple[_Facts, str, int | None, tuple[tuple[int, str], ...], int | None]
Leaves = tuple[tuple[tuple[str, str], ...], ...]
"""Devices of a job, by member: addresses of physical leaves and of the virtual ones."""
_HoldingKey = tuple[_Facts, int | None, Leaves]


def live_rows(using: str) -> list[LiveJobRow]:
    """Return the rows of all live jobs in ascending order of IDs."""
    # An order in SQL would copy all columns into a temporary index.
    jobs: QuerySet[Job] = Job.objects.unscoped().using(using).live().order_by()
    texts = {name: Cast(column, TextField()) for name, column in _TEXTS.items()}
    rows = jobs.annotate(**texts).values_list(*LiveJobRow._fields)
    found = [LiveJobRow._make(row) for row in rows]
    found.sort(key=itemgetter(0))
    return found


class Remembered(Generic[Key, Value]):
    """Cache of one value for each job; each use drops all jobs that it does not request."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._known: Mapping[int, tuple[Key, Value]] = {}

    def of(self, keys: Iterable[Key]) -> tuple[Value, ...]:
        """Return the value of each key in the order of the keys.

        The first item of a key is a row that begins with the ID of its job. IDs are looked up,
        since the hash of a row takes longer than a comparison.
        """
        before, now = self._known, {}
        for key in keys:
            job_id = key[0][0]
            known = before.get(job_id)
            if known is None or known[0] != key:
                known = key, self._make(key)
            now[job_id] = known
        self._known = now
        return tuple([value for _, value in now.values()])


def queued_jobs(
    rows: Iterable[LiveJobRow],
    caps: Mapping[tuple[int, int], int],
    after: Mapping[int, Sequence[tuple[int, str]]],
    turns: Mapping[int, int],
) -> tuple[QueuedJob, ...]:
    """Return the waiting jobs.

    Args:
        rows: their rows.
        caps: cap of a member in devices, by tenant and user.
        after: unfinished dependencies with their states, by job.
        turns: maximum number of concurrent jobs of the sweep, by job that its sweep holds.
    """
    return _QUEUED.of(_waiting_keys(rows, caps, after, turns))


def _waiting_keys(
    rows: Iterable[LiveJobRow],
    caps: Mapping[tuple[int, int], int],
    after: Mapping[int, Sequence[tuple[int, str]]],
    turns: Mapping[int, int],
) -> Iterable[_WaitingKey]:
    return (
        (
            row[:_FACTS],
            row.reason_json if row.reason_code in _WITH_VICTIMS else "{}",
            caps.get((row.tenant_id, row.owner_id)) if caps else None,
            tuple(after.get(row.id, ())),
            turns.get(row.id),
        )
        for row in rows
    )


def at_their_size(rows: Iterable[LiveJobRow], demands: Mapping[int, Any]) -> Iterable[LiveJobRow]:
    """Replace the demands of resized jobs in rows; ``demands`` has the current demand by job."""
    if not demands:
        return rows
    texts = {job_id: json.dumps(demand, sort_keys=True) for job_id, demand in demands.items()}
    return (row._replace(demand_text=texts.get(row.id, row.demand_text)) for row in rows)


def holding_jobs(
    rows: Iterable[LiveJobRow],
    caps: Mapping[tuple[int, int], int],
    leases: Mapping[int, Leaves],
) -> tuple[HoldingJob, ...]:
    """Return the jobs that hold devices.

    Args:
        rows: database rows of these jobs.
        caps: limit of devices of a person, by tenant and user.
        leases: leased leaves of each gang member, by job.
    """
    return _HOLDING.of(
        (row[:_FACTS], caps.get((row.tenant_id, row.owner_id)), leases.get(row.id, ()))
        for row in rows
    )


def cpu_jobs(rows: Iterable[LiveJobRow]) -> dict[int, HoldingJob]:
    """Return the running jobs without devices, by ID."""
    return {job.id: job for job in _CPU_JOBS.of((row[:_FACTS], None, ()) for row in rows)}


def waiting_cpu_jobs(
    rows: Iterable[LiveJobRow],
    after: Mapping[int, Sequence[tuple[int, str]]],
    turns: Mapping[int, int],
) -> tuple[QueuedJob, ...]:
    """Return the waiting jobs without devices; the arguments are those of ``queued_jobs``."""
    return _WAITING_CPU_JOBS.of(_waiting_keys(rows, {}, after, turns))


def guest_jobs(rows: Iterable[LiveJobRow], leases: Mapping[int, Leaves]) -> dict[int, HoldingJob]:
    """Return the jobs that run as guests, with their devices, by ID."""
    jobs = _GUESTS.of((row[:_FACTS], None, leases.get(row.id, ())) for row in rows)
    return {job.id: job for job in jobs}


@lru_cache(maxsize=16384)
def stored_reason(code: str, detail: str) -> StoredReason:
    """Return the reason in two columns; jobs with equal columns share one object."""
    return StoredReason(code=code, detail=_json(detail))


def _queued(key: _WaitingKey) -> QueuedJob:
    facts, reason, cap, waits_for, turn_of = key
    row = LiveJobRow._make((*facts, "", reason))
    return QueuedJob(
        id=row.id,
        vc=row.virtual_cluster_id,
        tenant=row.tenant_id,
        owner=row.owner_id,
        owner_name=row.owner__username,
        priority=row.priority,
        job_class=JobClass(row.job_class),
        demand=_demand(row.demand_text),
        submitted=_seconds(row.submitted_at_text),
        not_before=_seconds_or_none(row.not_before_text),
        held=row.held_text in YES,
        backoff_until=_seconds_or_none(row.backoff_until_text),
        after=tuple(other for other, state in waits_for if state not in ENDED_BADLY),
        after_failed=tuple(other for other, state in waits_for if state in ENDED_BADLY),
        excluded_nodes=tuple(_json(row.excluded_nodes_text)),
        user_cap=cap,
        waiting_for=tuple(_json(row.reason_json).get("waiting_for", ())),
        claims=read_claims(_json(row.reason_json).get("claims")),
        turn_of=turn_of,
    )


def _holding(key: _HoldingKey) -> HoldingJob:
    facts, cap, members = key
    row = LiveJobRow._make((*facts, "", ""))
    return HoldingJob(
        id=row.id,
        vc=row.virtual_cluster_id,
        tenant=row.tenant_id,
        owner=row.owner_id,
        priority=row.priority,
        job_class=JobClass(row.job_class),
        demand=_demand(row.demand_text),
        submitted=_seconds(row.submitted_at_text),
        since=_seconds(row.state_since_text),
        saved=_seconds_or_none(row.saved_at_text),
        leaving=row.state in LEAVING,
        members=tuple(
            tuple([HeldLeaf(address=address, virtual=virtual) for address, virtual in leaves])
            for leaves in members
        ),
        user_cap=cap,
    )


@lru_cache(maxsize=4096)
def _demand(stored: str) -> Demand:
    return Demand.from_json(json.loads(stored))


@lru_cache(maxsize=4096)
def _json(stored: str) -> Any:
    return json.loads(stored)


def _seconds(stored: str) -> float:
    """Return seconds since 1970; SQLite stores UTC without offset, PostgreSQL adds one."""
    moment = datetime.fromisoformat(stored)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds_or_none(stored: str | None) -> float | None:
    return _seconds(stored) if stored else None


_QUEUED: Final = Remembered(_queued)
_HOLDING: Final = Remembered(_holding)
_GUESTS: Final = Remembered(_holding)
_CPU_JOBS: Final = Remembered(_holding)
_WAITING_CPU_JOBS: Final = Remembered(_queued)
