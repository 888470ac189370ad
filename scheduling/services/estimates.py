"""Start estimates of all waiting jobs, made in the background after rounds and kept with them."""

import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from math import isinf
from typing import Final

from django.db import transaction

from scheduling.core.forecast.forward import Course
from scheduling.core.forecast.futures import Futures, try_futures
from scheduling.core.lifecycle import TERMINAL, JobState
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.core.rounds import decide, jobs_ahead
from scheduling.core.values import ClusterSnapshot, QueuedJob, RoundResult
from scheduling.models import Attempt, EstimateRecord, Job, StartEstimate
from scheduling.services.corrections import lessons_of
from scheduling.services.limits import time_limit
from scheduling.services.run_times import pasts_of_live_jobs, run_times
from scheduling.services.unblocking import seek_for_all, stored
from scheduling.snapshot import RoundConfig, next_round_number, take_snapshot

FUTURES: Final = 20
COURSE: Final = Course(coarse=0.02, most_waiting=200)
SECONDS: Final = 8.0
STEP_SECONDS: Final = 4.0
POLICY_SECONDS: Final = 2.0
LITTLE_SECONDS: Final = 20.0
LITTLE: Final = 0.03
"""An estimate that has moved by less, in seconds or as a part of its distance, is not written."""

_CHUNK: Final = 500


def estimate_starts(*, config: RoundConfig, now: datetime, futures: int = FUTURES) -> int:
    """Estimate the starts of all waiting jobs as things stand after the newest round.

    Args:
        config: the settings of rounds.
        now: the present.
        futures: how many are tried at most, for ``SECONDS`` in all.

    Returns:
        How many jobs have an estimate now.
    """
    close_records(now=now)
    if not Job.objects.unscoped().queued().exists():
        StartEstimate.objects.all().delete()
        return 0
    number = next_round_number(config.using)
    snapshot = take_snapshot(number=number, now=now, config=config).snapshot
    limit = time_limit(POLICY_SECONDS)
    result = decide(snapshot, limit=limit, trials=0)
    deadline = time.monotonic() + SECONDS
    seen = try_futures(
        snapshot,
        run_times(now=now),
        pasts_of_live_jobs(now=now),
        futures=futures,
        seed=number,
        course=COURSE,
        wanted=[job.id for job in snapshot.queued if _may_start(job, result)],
        go_on=lambda: time.monotonic() < deadline,
        limit=limit,
    )
    rows = _Rows(snapshot, seen, jobs_ahead(snapshot, limit=limit), max(number - 1, 1), now)
    rows.store(result)
    return rows.estimated


def close_records(*, now: datetime) -> None:
    """Write the truth beside estimates whose jobs have been given devices or have ended."""
    pending = list(
        EstimateRecord.objects.filter(closed_at=None)
        .exclude(job__state=JobState.QUEUED, job__attempts_made=0)
        .values_list("id", "job_id", "made_at", "job__state")[: 10 * _CHUNK]
    )
    if not pending:
        return
    starts: dict[int, list[datetime]] = {}
    for chunk in _chunks({job_id for _, job_id, _, _ in pending}):
        for job_id, at in Attempt.objects.filter(job__in=chunk).values_list("job", "created_at"):
            starts.setdefault(job_id, []).append(at)
    over = {state.value for state in TERMINAL}
    closed: list[EstimateRecord] = []
    for pk, job_id, made_at, state in pending:
        later = [at for at in starts.get(job_id, ()) if at >= made_at]
        if later or state in over:
            wait = (min(later) - made_at).total_seconds() if later else None
            closed.append(EstimateRecord(pk=pk, wait=wait, closed_at=now))
    EstimateRecord.objects.bulk_update(closed, ["wait", "closed_at"], batch_size=_CHUNK)


def _may_start(job: QueuedJob, result: RoundResult) -> bool:
    """Whether time alone can let a job start."""
    reason = result.reasons.get(job.id)
    return not job.held and not job.after_failed and (reason is None or not _is_final(reason))


def _is_final(reason: Reason) -> bool:
    return reason.code in _NEVER


_NEVER: Final = frozenset(
    {
        ReasonCode.INVALID_SPEC,
        ReasonCode.UNKNOWN_VC,
        ReasonCode.UNKNOWN_TYPE,
        ReasonCode.EXCEEDS_VC_MAX,
        ReasonCode.EXCEEDS_USER_MAX,
        ReasonCode.DEADLINE_INFEASIBLE,
        ReasonCode.NO_NODE_WITH_DOCKER,
        ReasonCode.CPU_OR_MEMORY,
    }
)


def _within_horizon(quantiles: tuple[float, float, float]) -> tuple[float, float, float]:
    """Nobody looks any further: later starts count as if they came at that time."""
    p10, p50, p90 = (min(seconds, COURSE.horizon) for seconds in quantiles)
    return p10, p50, p90


class _Rows:
    """Turns what was seen into rows."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        seen: Futures,
        ahead: Mapping[int, int],
        number: int,
        now: datetime,
    ) -> None:
        self._snapshot, self._seen, self._ahead = snapshot, seen, ahead
        self._number, self._now = number, now
        self._lessons = lessons_of({job.vc for job in snapshot.queued}, now=now)
        self.estimated = 0

    def store(self, result: RoundResult) -> None:
        """Write the newest estimates, and keep some of them for the day of truth."""
        moving = {start.job_id for start in result.starts}
        moving |= {preemption.for_job for preemption in result.preemptions}
        found = seek_for_all(
            snapshot=self._snapshot,
            moving=moving,
            reasons=dict(result.reasons),
            seconds=STEP_SECONDS,
        )
        rows, records = [], []
        waited = self._waited()
        for job in self._snapshot.queued:
            quantiles = self._seen.quantiles(job.id)
            row = StartEstimate(
                job_id=job.id,
                round_number=self._number,
                made_at=self._now,
                ahead=self._ahead.get(job.id),
            )
            if job.id in found:
                row.sought = self._number
                for name, value in stored(found[job.id]).items():
                    setattr(row, name, value)
            if quantiles is not None:
                shown = self._shown(job, quantiles, row)
                if shown is not None and self._is_worth_keeping(job, waited.get(job.id)):
                    records.append(self._record(job, quantiles, shown))
            rows.append(row)
        self._write(rows, records)

    def _shown(
        self, job: QueuedJob, quantiles: tuple[float, float, float], row: StartEstimate
    ) -> tuple[float, float, float] | None:
        """Fill the row; None where most futures end before the job has started."""
        if isinf(quantiles[1]):
            return None
        mended = self._lessons[job.vc].mend(
            _within_horizon(quantiles),
            now=self._now.timestamp(),
            waited=self._waits_for(job),
            devices=job.demand.devices,
            job=job.id,
        )
        shown = _within_horizon(mended)
        row.p10, row.p50, row.p90 = (self._now + timedelta(seconds=wait) for wait in shown)
        self.estimated += 1
        return shown

    def _waits_for(self, job: QueuedJob) -> float:
        return max(0.0, self._now.timestamp() - job.submitted)

    def _waited(self) -> dict[int, float]:
        """How long jobs had waited when an estimate of theirs was kept last."""
        rows = EstimateRecord.objects.filter(closed_at=None).values_list("job_id", "waited")
        found: dict[int, float] = {}
        for job_id, waited in rows:
            found[job_id] = max(waited, found.get(job_id, 0.0))
        return found

    def _is_worth_keeping(self, job: QueuedJob, before: float | None) -> bool:
        """The first estimate, and another one whenever the wait has doubled."""
        return before is None or self._waits_for(job) > 2.0 * max(before, 300.0)

    def _record(
        self,
        job: QueuedJob,
        raw: tuple[float, float, float],
        shown: tuple[float, float, float],
    ) -> EstimateRecord:
        return EstimateRecord(
            job_id=job.id,
            virtual_cluster_id=job.vc,
            round_number=self._number,
            made_at=self._now,
            waited=self._waits_for(job),
            **dict(zip(("raw_p10", "raw_p50", "raw_p90"), _within_horizon(raw), strict=True)),
            p10=shown[0],
            p50=shown[1],
            p90=shown[2],
        )

    def _write(self, rows: list[StartEstimate], records: list[EstimateRecord]) -> None:
        """In short transactions, and only what tells something new.

        A job that has gone meanwhile takes its row with it.
        """
        columns = ["round_number", "made_at", "p10", "p50", "p90", "ahead"]
        sought = [*columns, "steps", "proof", "sought"]
        StartEstimate.objects.exclude(job__state=JobState.QUEUED).delete()
        for begin in range(0, len(rows), _CHUNK):
            with transaction.atomic():
                chunk = rows[begin : begin + _CHUNK]
                there = set(
                    Job.objects.unscoped()
                    .queued()
                    .filter(pk__in=[row.job_id for row in chunk])
                    .values_list("id", flat=True)
                )
                mine = [row for row in chunk if row.job_id in there]
                old = StartEstimate.objects.only("p10", "p50", "p90", "ahead").in_bulk(
                    [row.job_id for row in mine]
                )
                for with_steps, names in ((True, sought), (False, columns)):
                    StartEstimate.objects.bulk_create(
                        [
                            row
                            for row in mine
                            if bool(row.sought) is with_steps
                            and _tells_more(row, old.get(row.job_id))
                        ],
                        update_conflicts=True,
                        unique_fields=["job"],
                        update_fields=names,
                    )
                EstimateRecord.objects.bulk_create(
                    [r for r in records if r.job_id in {row.job_id for row in mine}],
                    ignore_conflicts=True,
                )


def _tells_more(row: StartEstimate, old: StartEstimate | None) -> bool:
    """Whether a row says anything that the one in its place does not say about as well."""
    if old is None or row.sought or row.ahead != old.ahead:
        return True
    for name in ("p10", "p50", "p90"):
        before, after = getattr(old, name), getattr(row, name)
        if before is None or after is None:
            if before is not after:
                return True
            continue
        moved = abs((after - before).total_seconds())
        if moved > max(LITTLE_SECONDS, LITTLE * (after - row.made_at).total_seconds()):
            return True
    return False


def _chunks(ids: Collection[int]) -> Iterable[list[int]]:
    ordered = sorted(ids)
    return (ordered[begin : begin + _CHUNK] for begin in range(0, len(ordered), _CHUNK))
