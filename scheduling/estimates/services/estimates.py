"""Start estimates and steps of waiting jobs, computed in the background and stored.

One task renews the estimates of all jobs periodically. Another one computes the estimates of newly
waiting jobs at once, in less time.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import isinf
from operator import attrgetter
from typing import Final, TypedDict

from django.db import transaction
from django.db.models import F, Q, QuerySet

from scheduling.common.on_commit import signal_new_estimates
from scheduling.common.time_limits import time_limit
from scheduling.core.forecast import HORIZON
from scheduling.core.forecast.calibration import Basis, Forecast
from scheduling.core.forecast.futures import Futures, Past, jobs_without_limit, try_futures
from scheduling.core.forecast.usual import Quantiles
from scheduling.core.lifecycle import JobState
from scheduling.core.round.decide import decide
from scheduling.core.round.gates import seconds_closed
from scheduling.core.round_result import RoundResult
from scheduling.core.simulation import SimulationSettings
from scheduling.core.values import QueuedJob
from scheduling.estimates.models import EstimateRecord, StartEstimate
from scheduling.estimates.services.corrections import close_records, lessons_of
from scheduling.estimates.services.explanations import seek_for_all, stored
from scheduling.estimates.services.run_times import pasts_of_live_jobs, recent_run_times, run_times
from scheduling.jobs.models import Job
from scheduling.rounds.snapshot import Reading, RoundConfig, next_round_number, take_snapshot

FUTURES: Final = 20
SETTINGS: Final = SimulationSettings(horizon=HORIZON, coarse=0.02, most_waiting=200)
SECONDS: Final = 8.0
STEP_SECONDS: Final = 4.0
NEW_SECONDS: Final = 1.5
NEW_STEP_SECONDS: Final = 1.0
FEWEST_FUTURES: Final = 10
"""Minimum number of futures for jobs that have just begun to wait; one in full renewals."""

MOST_NEW: Final = 1000
POLICY_SECONDS: Final = 2.0
LITTLE_SECONDS: Final = 20.0
LITTLE: Final = 0.03
"""An estimate that has moved by less, in seconds or as a part of its distance, is not written."""

UNKNOWN: Final[Quantiles] = (HORIZON, HORIZON, HORIZON)
"""Quantiles in the record of a job without an estimate."""

_CHUNK: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one estimation.

    Attributes:
        walking: seconds for the simulated futures.
        seeking: seconds for the search for steps.
        futures: maximum number of futures.
        fewest: number of futures below which no estimate is stored.
    """

    walking: float
    seeking: float
    futures: int = FUTURES
    fewest: int = 1


def estimate_starts(*, config: RoundConfig, now: datetime, budget: Budget | None = None) -> int:
    """Estimate the starts of all waiting jobs after the newest round.

    Args:
        config: the settings of rounds.
        now: the current time.
        budget: limits of the estimation; None selects the default limits.

    Returns:
        The number of jobs with an estimate.
    """
    close_records(now=now)
    if not Job.objects.unscoped().queued().exists():
        StartEstimate.objects.all().delete()
        return 0
    budget = budget or Budget(walking=SECONDS, seeking=STEP_SECONDS)
    return _estimate(None, budget, config=config, now=now)


def estimate_new_waits(
    *, config: RoundConfig, now: datetime, budget: Budget | None = None
) -> frozenset[int]:
    """Estimate only jobs that started to wait, or whose reason has changed.

    Returns:
        The IDs of these jobs.
    """
    wanted = new_waits()
    if not wanted:
        return wanted
    budget = budget or Budget(walking=NEW_SECONDS, seeking=NEW_STEP_SECONDS, fewest=FEWEST_FUTURES)
    _estimate(wanted, budget, config=config, now=now)
    return wanted


def new_waits(most: int = MOST_NEW) -> frozenset[int]:
    """Return waiting jobs for whose current reason no steps were sought yet.

    At most ``most`` jobs are returned, first the jobs without any estimate.
    """
    first = (
        _waiting()
        .filter(_HAS_NO_STEPS)
        .order_by(F("estimate").asc(nulls_first=True), "-priority", "id")
    )
    return frozenset(first.values_list("id", flat=True)[:most])


def _unsought() -> frozenset[int]:
    """Return jobs without steps for their current reason, including searches that timed out."""
    jobs = _waiting().filter(_HAS_NO_STEPS | Q(estimate__sought=0))
    return frozenset(jobs.values_list("id", flat=True))


def _waiting() -> QuerySet[Job]:
    return Job.objects.unscoped().queued().exclude(reason_code="")


_HAS_NO_STEPS: Final = (
    Q(estimate=None)
    | ~Q(estimate__sought_for=F("reason_code"))
    | ~Q(estimate__amendments=F("amendments"))
)


def _estimate(
    only: frozenset[int] | None, budget: Budget, *, config: RoundConfig, now: datetime
) -> int:
    """Estimate the waiting jobs in ``only`` (None: all); return the number of estimates."""
    # Read before the snapshot, so that no estimate of a job amended in between is stored.
    amended = _amended()
    number = next_round_number(config.using)
    reading = take_snapshot(number=number, now=now, config=config)
    snapshot = reading.snapshot
    limit = time_limit(POLICY_SECONDS)
    result = decide(snapshot, limit=limit, trials=0)
    deadline = time.monotonic() + budget.walking
    wanted = [
        job.id
        for job in (*snapshot.queued, *snapshot.cpu_queued)
        if (only is None or job.id in only) and _may_start(job, result)
    ]
    pasts = pasts_of_live_jobs(now=now)
    seen = try_futures(
        snapshot,
        run_times(now=now) if only is None else recent_run_times(now=now),
        pasts,
        futures=budget.futures if wanted else 0,
        seed=number,
        settings=SETTINGS,
        wanted=wanted,
        go_on=lambda: time.monotonic() < deadline,
        limit=limit,
    )
    rows = EstimateRows(reading, seen, budget, now, only, amended=amended, pasts=pasts)
    rows.store(result)
    signal_new_estimates(rows.answered)
    return rows.estimated


def _amended() -> dict[int, int]:
    """Return the numbers of amendments of waiting jobs; jobs without amendments are omitted."""
    changed = Job.objects.unscoped().queued().exclude(amendments=0)
    return dict(changed.values_list("id", "amendments"))


def _may_start(job: QueuedJob, result: RoundResult) -> bool:
    """Return whether a job can start without a change of the job."""
    reason = result.reasons.get(job.id)
    is_final = reason is not None and reason.code.row.is_final
    return not job.held and not job.after_failed and not is_final


def _within_horizon(quantiles: Quantiles) -> Quantiles:
    """Return quantiles limited to the horizon of estimates."""
    p10, p50, p90 = (min(seconds, SETTINGS.horizon) for seconds in quantiles)
    return p10, p50, p90


class _Given(TypedDict):
    """Arguments that all forecasts of one job share; see ``Calibration.mend``."""

    now: float
    waited: float
    devices: int
    job: int
    soonest: float


class EstimateRows:
    """Converts waits in simulated futures to rows of estimates."""

    def __init__(
        self,
        reading: Reading,
        seen: Futures,
        budget: Budget,
        now: datetime,
        only: frozenset[int] | None,
        *,
        amended: Mapping[int, int],
        pasts: Mapping[int, Past],
    ) -> None:
        snapshot = reading.snapshot
        self._snapshot, self._reasons = snapshot, reading.reasons
        self._seen, self._budget, self._only = seen, budget, only
        self._amended, self._pasts = amended, pasts
        queued = (*snapshot.queued, *snapshot.cpu_queued)
        self._queue = {job.id: job for job in queued}
        self._number, self._now = max(snapshot.round_number - 1, 1), now
        self._jobs = [job for job in queued if only is None or job.id in only]
        self._lessons = lessons_of({job.vc for job in self._jobs}, now=now)
        self.estimated = 0
        self.answered: list[int] = []

    def store(self, result: RoundResult) -> None:
        """Store the newest estimates, and records of some of them for the calibration."""
        moving = {start.job_id for start in result.starts}
        moving |= {preemption.for_job for preemption in result.preemptions}
        found = seek_for_all(
            snapshot=self._snapshot,
            moving=moving,
            reasons=dict(result.reasons),
            seconds=self._budget.seeking,
            wanted=self._only,
            first=_unsought(),
        )
        rows, records = [], []
        waited = self._waited()
        is_enough = self._seen.tried >= self._budget.fewest or not self._seen.waits
        for job in self._jobs:
            quantiles = self._seen.quantiles(job.id) if is_enough else None
            row = StartEstimate(
                job_id=job.id,
                round_number=self._number if is_enough else 0,
                made_at=self._now,
                amendments=self._amended.get(job.id, 0),
            )
            if job.id in self._reasons:
                row.sought_for = self._reasons[job.id].code
            if not job.demand.has_devices:
                row.sought = self._number  # steps change devices
            if job.id in found:
                row.sought = self._number
                for name, value in stored(found[job.id]).items():
                    setattr(row, name, value)
            if is_enough and self._seen.waits.get(job.id):
                filled = self._fill(job, quantiles, row)
                if filled is not None and self._is_worth_keeping(job, waited.get(job.id)):
                    records.append(self._record(job, *filled))
            rows.append(row)
        self._write(rows, records)

    def _fill(
        self, job: QueuedJob, quantiles: Quantiles | None, row: StartEstimate
    ) -> tuple[Quantiles, Forecast] | None:
        """Fill the estimate of a row; return its input and its forecast for the calibration.

        If most futures end before the start, past waits replace them. Without enough of those,
        the job has no estimate, and its record teaches only its wait. The result is None if only a
        gate decides.
        """
        now = self._now.timestamp()
        soonest = seconds_closed(job, now, self._queue)
        if soonest > 0.0:
            row.opens_at = self._now + timedelta(seconds=soonest)
        lessons, basis = self._lessons[job.vc], None
        given: _Given = {
            "now": now,
            "waited": self._waits_for(job),
            "devices": job.demand.devices,
            "job": job.id,
            "soonest": soonest,
        }
        if quantiles is None or isinf(quantiles[1]):
            quantiles, basis = lessons.from_waits(**given), Basis.WAITS
        if quantiles is None:
            row.basis = Basis.FEW
            return UNKNOWN, Forecast(quantiles=UNKNOWN, basis=Basis.FEW)
        quantiles = _within_horizon(quantiles)
        if basis is None:
            found = lessons.forecast(quantiles, **given)
        else:
            found = Forecast(quantiles=lessons.mend(quantiles, **given), basis=basis)
        found = replace(found, quantiles=_within_horizon(found.quantiles))
        row.unreliable = not found.is_reliable
        if row.unreliable:
            row.unlimited = list(jobs_without_limit(self._snapshot, job, self._pasts))
        else:
            row.basis = found.basis
            row.p10, row.p50, row.p90 = (
                self._now + timedelta(seconds=wait) for wait in found.quantiles
            )
            self.estimated += 1
        return None if found.basis is Basis.GATE else (quantiles, found)

    def _waits_for(self, job: QueuedJob) -> float:
        return max(0.0, self._now.timestamp() - job.submitted)

    def _waited(self) -> dict[int, float]:
        """Return the wait of each job at its newest record, in seconds."""
        rows = EstimateRecord.objects.filter(closed_at=None)
        if self._only is not None:
            rows = rows.filter(job__in=self._only)
        found: dict[int, float] = {}
        for job_id, waited in rows.values_list("job_id", "waited"):
            found[job_id] = max(waited, found.get(job_id, 0.0))
        return found

    def _is_worth_keeping(self, job: QueuedJob, before: float | None) -> bool:
        """Return whether to store a record, as for the first estimate and a doubled wait."""
        return before is None or self._waits_for(job) > 2.0 * max(before, 300.0)

    def _record(
        self,
        job: QueuedJob,
        raw: Quantiles,
        found: Forecast,
    ) -> EstimateRecord:
        return EstimateRecord(
            job_id=job.id,
            virtual_cluster_id=job.vc,
            round_number=self._number,
            made_at=self._now,
            waited=self._waits_for(job),
            **dict(zip(("raw_p10", "raw_p50", "raw_p90"), _within_horizon(raw), strict=True)),
            **dict(zip(("p10", "p50", "p90"), found.quantiles, strict=True)),
            shown=found.is_reliable and found.basis is not Basis.FEW,
        )

    def _write(self, rows: list[StartEstimate], records: list[EstimateRecord]) -> None:
        """Write changed rows in short transactions.

        A job that was deleted or amended meanwhile gets no row.
        """
        estimated = (
            "round_number", "made_at", "p10", "p50", "p90",
            "basis", "opens_at", "unreliable", "unlimited",
        )  # fmt: skip
        sought = ("steps", "proof", "sought", "sought_for")
        parts = (
            (True, True, (*estimated, *sought)),
            (True, False, estimated),
            (False, True, sought),
        )
        is_over = ~Q(job__state=JobState.QUEUED) | ~Q(amendments=F("job__amendments"))
        StartEstimate.objects.filter(is_over).delete()
        for begin in range(0, len(rows), _CHUNK):
            with transaction.atomic():
                chunk = rows[begin : begin + _CHUNK]
                there = self._unchanged(chunk)
                old = StartEstimate.objects.defer("steps", "proof").in_bulk(list(there))
                mine = [
                    row
                    for row in chunk
                    if row.job_id in there and self._is_more_precise(row, old.get(row.job_id))
                ]
                self.answered += [r.job_id for r in mine if _answers(r, old.get(r.job_id))]
                for is_estimated, has_steps, names in parts:
                    StartEstimate.objects.bulk_create(
                        [
                            row
                            for row in mine
                            if bool(row.round_number) is is_estimated
                            and self._has_steps(row) is has_steps
                        ],
                        update_conflicts=True,
                        unique_fields=["job"],
                        update_fields=(*names, "amendments"),
                    )
                EstimateRecord.objects.bulk_create(
                    [r for r in records if r.job_id in there], ignore_conflicts=True
                )

    def _unchanged(self, rows: Iterable[StartEstimate]) -> set[int]:
        """Return the jobs of rows that still wait and were not amended since the estimate."""
        about = {row.job_id: row.amendments for row in rows}
        jobs = Job.objects.unscoped().queued().filter(pk__in=list(about))
        return {pk for pk, now in jobs.values_list("id", "amendments") if about[pk] == now}

    def _has_steps(self, row: StartEstimate) -> bool:
        """Return whether a row replaces older steps; new waits do so even without steps."""
        return bool(row.sought) or self._only is not None

    def _is_more_precise(self, row: StartEstimate, old: StartEstimate | None) -> bool:
        """Return whether a row adds information to the stored row."""
        if old is None or self._has_steps(row) or not old.round_number:
            return True
        return _has_moved(row, old)


def _answers(row: StartEstimate, old: StartEstimate | None) -> bool:
    """Return whether a row has results that were pending in the stored row."""
    if old is None:
        return bool(row.round_number or row.sought)
    is_estimated = bool(row.round_number) and not old.round_number
    is_other = not old.sought or old.sought_for != row.sought_for
    return is_estimated or (bool(row.sought) and is_other)


def _has_moved(row: StartEstimate, old: StartEstimate) -> bool:
    """Return whether an estimate differs from the stored one by more than the thresholds."""
    told = attrgetter("basis", "unreliable", "unlimited")
    if told(row) != told(old):
        return True
    for name in ("opens_at", "p10", "p50", "p90"):
        before, after = getattr(old, name), getattr(row, name)
        if before is None or after is None:
            if before is not after:
                return True
            continue
        moved = abs((after - before).total_seconds())
        if moved > max(LITTLE_SECONDS, LITTLE * (after - row.made_at).total_seconds()):
            return True
    return False
