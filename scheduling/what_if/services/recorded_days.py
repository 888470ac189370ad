"""Past days of the whole cluster, from stored rounds and attempts, as input of a simulation.

The stored rounds contain the jobs, virtual clusters, nodes and guarantees. The attempts contain
the work of each job. Jobs that had not ended count with their work so far.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Final

from scheduling.clusters.models import VirtualCluster
from scheduling.core.charging import charged_seconds
from scheduling.core.jobspec import Demand
from scheduling.core.lifecycle import TERMINAL
from scheduling.core.messages import sentence
from scheduling.core.round.declared_terms import read_terms
from scheduling.core.simulation import ModelSpeedup, Overhead, QueueChange
from scheduling.core.simulation.events import Event
from scheduling.core.simulation.speedup import HeldShape
from scheduling.core.values import ClusterSnapshot, HoldingJob, JobFacts, QueuedJob
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.runs.models import Attempt
from scheduling.storage.base import FileStorage
from scheduling.what_if.services.recorded_rounds import RecordedRounds, recorded_rounds
from tenants.errors import InvalidError

MOST_ROUNDS: Final = 20_000
MOST_JOBS: Final = 10_000
_DELETED: Final = "deleted"
_DEFAULT_WORK: Final = 3600.0
"""Assumed work in seconds of a job that never ran, if no job of the period ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A job of the period and its actual history; times in seconds since the epoch.

    Attributes:
        vc: ID of its virtual cluster.
        submitted: submission, or the start of the period if that is later.
        started: first start within the period; None without one, or if it ran at its start.
        finished: end; None if it has not ended.
        has_ended: whether its work is complete.
        work: seconds of work within the period and after it, at the requested size.
        assumed: whether the work is assumed, since the job never ran.
        overhead: costs of its starts.
    """

    id: int
    vc: int
    tenant: int
    devices: int
    submitted: float
    started: float | None
    finished: float | None
    has_ended: bool
    work: float
    assumed: bool
    overhead: Overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDays:
    """A period of the cluster's history, ready for simulations.

    Attributes:
        vc: ID of the virtual cluster that a what-if changes.
        snapshot: the cluster at the start of the period.
        arrivals: jobs that were submitted in the period, with their facts.
        events: changes of the cluster and of the queue.
        jobs: all jobs of the period by ID.
        speedup: speeds of jobs at other sizes, from their reports.
        rounds: number of stored rounds in the period.
        seconds: length of the period.
        left_out: jobs that are not simulated, by reason.
        queued: all jobs by ID, with their first queued state.
        latest: newest facts of jobs, from which ``speedup`` is fitted.
    """

    name: str
    vc: int
    snapshot: ClusterSnapshot
    arrivals: tuple[tuple[QueuedJob, JobFacts], ...]
    events: tuple[Event, ...]
    jobs: Mapping[int, RecordedJob]
    speedup: ModelSpeedup
    rounds: int
    seconds: float
    left_out: Mapping[str, int]
    queued: Mapping[int, QueuedJob]
    latest: Mapping[int, JobFacts]


def recorded_days(
    *, vc: VirtualCluster, since: datetime, until: datetime, storage: FileStorage, now: datetime
) -> RecordedDays:
    """Return the history of the cluster in a period.

    Args:
        vc: the virtual cluster that a what-if changes.
        since: start of the period.
        until: end of the period.
        storage: has the files of rounds.
        now: the current time.

    Raises:
        InvalidError: the period has no stored rounds with this virtual cluster, or too many.
    """
    stored = list(
        Round.objects.filter(started_at__gte=since, started_at__lte=until)
        .exclude(snapshot_path="")
        .order_by("number")[: MOST_ROUNDS + 1]
    )
    if len(stored) > MOST_ROUNDS:
        raise _span_error(
            sentence("more-than-stored-rounds", most=format(MOST_ROUNDS, ",")), since
        )
    found = recorded_rounds(stored, storage)
    if found is None:
        raise _span_error(sentence("no-stored-round"), since)
    if vc.pk not in _virtual_clusters(found):
        raise _span_error(sentence("no-round-of-cluster"), since)
    start = found.start
    if len(start.queued) + len(start.holding) + len(found.arrivals) > MOST_JOBS:
        raise _span_error(sentence("more-than-jobs", most=format(MOST_JOBS, ",")), since)
    reading = _Reading(found, now)
    jobs = reading.jobs()
    known = reading.known(jobs)
    snapshot = found.start
    return RecordedDays(
        name=f"{vc.name} from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M}",
        vc=vc.pk,
        snapshot=replace(
            snapshot,
            queued=tuple(job for job in snapshot.queued if job.id in jobs),
            holding=tuple(job for job in snapshot.holding if job.id in jobs),
            cpu_queued=(),
            cpu_holding=(),
            known={job_id: facts for job_id, facts in known.items() if job_id in jobs},
        ),
        arrivals=tuple(
            (job, known[job_id]) for job_id, job in found.arrivals.items() if job_id in jobs
        ),
        events=(*found.events, *reading.withdrawals(jobs)),
        jobs=jobs,
        speedup=reading.speedup,
        rounds=len(stored),
        seconds=(until - since).total_seconds(),
        left_out={_DELETED: len(reading.queued) - len(jobs)} if reading.is_incomplete else {},
        queued={job_id: job for job_id, job in reading.queued.items() if job_id in jobs},
        latest=found.latest,
    )


def _virtual_clusters(found: RecordedRounds) -> set[int]:
    return {vc.id for vc in found.start.vcs}


class _Reading:
    """Joins the jobs of stored rounds with their rows and attempts."""

    def __init__(self, found: RecordedRounds, now: datetime) -> None:
        self._found, self._now = found, now
        self._begin = datetime.fromtimestamp(found.start.now, tz=UTC)
        self._was_holding = {job.id for job in found.start.holding}
        self.queued = {job.id: job for job in found.start.queued}
        self.queued.update((job.id, _as_queued(job)) for job in found.start.holding)
        self.queued.update(found.arrivals)
        self.speedup = ModelSpeedup(self.queued, found.latest)
        self._rows: dict[int, Job] = {}
        attempts: dict[int, list[Attempt]] = defaultdict(list)
        for chunk in _chunks(sorted(self.queued)):
            self._rows.update(Job.objects.unscoped().in_bulk(chunk))
            rows = Attempt.objects.filter(job__in=chunk).order_by("job_id", "number")
            for attempt in rows.defer("demand", "layout", "message"):
                attempts[attempt.job_id].append(attempt)
        self._attempts = attempts

    @property
    def is_incomplete(self) -> bool:
        """Whether rows of jobs have been deleted."""
        return len(self._rows) < len(self.queued)

    def jobs(self) -> dict[int, RecordedJob]:
        """Return the jobs that still have a row."""
        works = {job_id: self._work(job_id) for job_id in sorted(self._rows)}
        usual = median([work for work in works.values() if work > 0.0] or [_DEFAULT_WORK])
        return {job_id: self._job(job_id, work, usual) for job_id, work in works.items()}

    def known(self, jobs: Mapping[int, RecordedJob]) -> dict[int, JobFacts]:
        """Return the first facts of each job, from rows if no round has them."""
        return {job_id: self._found.known.get(job_id) or self._declared(job_id) for job_id in jobs}

    def withdrawals(self, jobs: Mapping[int, RecordedJob]) -> Iterator[QueueChange]:
        """Yield the ends of jobs that ended without a start."""
        for job in jobs.values():
            if job.assumed and job.finished is not None:
                yield QueueChange(at=job.finished, job_id=job.id, job=None)

    def _declared(self, job_id: int) -> JobFacts:
        row = self._rows[job_id]
        demand = Demand.from_json(row.demand)
        return JobFacts(terms=read_terms(row.terms, demand, row.tenant_id), asked=demand)

    def _work(self, job_id: int) -> float:
        """Return the work of a job from the start of the period until now; 0 if it never ran."""
        return sum(
            charged_seconds(
                attempt.running_at, attempt.ended_at, since=self._begin, until=self._now
            )
            * self._speed(self.queued[job_id], attempt)
            for attempt in self._attempts[job_id]
        )

    def _held(self, job_id: int) -> float:
        """Return the time for which a job held devices, with or without a process."""
        return sum(
            charged_seconds(
                attempt.created_at, attempt.ended_at, since=self._begin, until=self._now
            )
            for attempt in self._attempts[job_id]
        )

    def _speed(self, job: QueuedJob, attempt: Attempt) -> float:
        asked = Demand.from_json(self._rows[job.id].demand)
        if not attempt.devices or attempt.devices == asked.devices:
            return 1.0
        types = (attempt.device_type,) if attempt.device_type else ()
        held = HeldShape(types=types, nodes=attempt.nodes, devices=attempt.devices)
        return self.speedup(job, asked, held)

    def _job(self, job_id: int, work: float, usual: float) -> RecordedJob:
        row, job = self._rows[job_id], self.queued[job_id]
        attempts = [one for one in self._attempts[job_id] if one.created_at >= self._begin]
        is_new = attempts and job_id not in self._was_holding
        return RecordedJob(
            id=job_id,
            vc=job.vc,
            tenant=job.tenant,
            devices=row.devices,
            submitted=max(row.submitted_at, self._begin).timestamp(),
            started=attempts[0].created_at.timestamp() if is_new else None,
            finished=row.finished_at.timestamp() if row.finished_at is not None else None,
            has_ended=row.state in {state.value for state in TERMINAL},
            work=work or self._held(job_id) or usual,
            assumed=work <= 0.0,
            overhead=Overhead(start=_start_seconds(attempts)),
        )


def _start_seconds(attempts: list[Attempt]) -> float:
    """Return the mean time from the placement of an attempt to its first process."""
    taken = [
        max(0.0, (one.running_at - one.created_at).total_seconds())
        for one in attempts
        if one.running_at is not None
    ]
    return sum(taken) / len(taken) if taken else 0.0


def _as_queued(job: HoldingJob) -> QueuedJob:
    return QueuedJob(
        id=job.id,
        vc=job.vc,
        tenant=job.tenant,
        owner=job.owner,
        owner_name="",
        priority=job.priority,
        job_class=job.job_class,
        demand=job.demand,
        submitted=job.submitted,
    )


def _chunks(ids: list[int], size: int = 500) -> Iterator[list[int]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _span_error(words: str, since: datetime) -> InvalidError:
    return InvalidError(
        words,
        field="since",
        value=since.isoformat(),
        remedy=sentence("choose-another-span"),
    )
