"""The audit: each guaranteed job of the span against its bound, and the verdict."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from scheduling.core.policies import make_policy
from scheduling.core.promises.denials import Denial, find_denials, is_outside_cells
from scheduling.core.promises.export import AuditedJob, DeviceReturn, PromiseExport
from scheduling.core.promises.figures import Cause, Verdict, figures
from scheduling.core.promises.private import private_starts
from scheduling.core.round.engine_setup import empty_engine, guaranteed_devices
from scheduling.core.round.policy_answers import MakePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """Waits of one job in seconds, and the verdict.

    Attributes:
        own: wait until its first start; until the end of the span without one.
        private: the same on the private cluster.
        bound: private wait + grace + two rounds.
        denied: longest time for which a private cluster would have started it and no cause
            applied; 0 if the job is within its bound.
    """

    job: int
    eligible: float
    started: bool
    own: float
    private: float
    bound: float
    denied: float
    verdict: Verdict
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseReport:
    """The audit of one virtual cluster and span; times in seconds since the epoch.

    Attributes:
        devices: guaranteed devices, as the mean over the span.
        used_hours: device-hours of guaranteed jobs in the span.
        jobs: verdicts in the order of eligibility.
        returns: returns of lent devices.
    """

    vc: int
    name: str
    since: float
    until: float
    grace: float
    round_seconds: float
    devices: float
    used_hours: float
    jobs: tuple[JobVerdict, ...]
    returns: tuple[DeviceReturn, ...] = ()

    @property
    def violations(self) -> tuple[JobVerdict, ...]:
        """The violated jobs."""
        return tuple(job for job in self.jobs if job.verdict is Verdict.VIOLATED)

    def to_json(self) -> dict[str, Any]:
        """Return the document that command, REST and stored audits share."""
        jobs = [_job_to_json(job) for job in self.jobs]
        returns = [
            {
                "job": one.job,
                "devices": one.devices,
                "seconds": round(one.released - one.asked, 3),
            }
            for one in self.returns
        ]
        hours = (self.until - self.since) / 3600.0 * self.devices
        return {
            "virtual_cluster": self.name,
            "since": self.since,
            "until": self.until,
            "grace_s": self.grace,
            "round_s": self.round_seconds,
            "guaranteed_device_hours": round(hours, 4),
            "used_device_hours": round(self.used_hours, 4),
            **figures(jobs, returns),
            "returns": returns,
            "jobs": jobs,
        }


def _job_to_json(job: JobVerdict) -> dict[str, Any]:
    return {
        "job": job.job,
        "eligible": job.eligible,
        "started": job.started,
        "own_wait_s": round(job.own, 3),
        "private_wait_s": round(job.private, 3),
        "bound_s": round(job.bound, 3),
        "denied_s": round(job.denied, 3),
        "verdict": job.verdict.value,
        "causes": [cause.value for cause in job.causes],
    }


ROUNDING: Final = 1e-6


def audit(export: PromiseExport, *, make: MakePolicy = make_policy) -> PromiseReport:
    """Compare the waits of guaranteed jobs with those on a private cluster.

    The result is deterministic. Jobs that were eligible before the span are replayed, but get a
    verdict only if they were evicted.

    Args:
        export: all facts of the span.
        make: builds a policy from its name and parameters.
    """
    starts = private_starts(export, make=make)
    evicted = {eviction.job for eviction in export.evictions}
    jobs = sorted(
        (job for job in export.jobs if export.audits(job) or job.job.id in evicted),
        key=lambda job: (job.eligible, job.job.id),
    )
    waits = {job.job.id: _waits(export, job, starts.get(job.job.id)) for job in jobs}
    suspects = [
        job.job.id
        for job in jobs
        if waits[job.job.id][0] > waits[job.job.id][1] + export.allowance(job) + ROUNDING
    ]
    denials = find_denials(export, suspects, make=make)
    return PromiseReport(
        vc=export.vc,
        name=export.name,
        since=export.since,
        until=export.until,
        grace=export.grace,
        round_seconds=export.snapshot.round_seconds,
        devices=_mean_guarantee(export),
        used_hours=sum(_used_seconds(export)) / 3600.0,
        jobs=tuple(
            _verdict(
                export,
                job,
                waits[job.job.id],
                denials.get(job.job.id),
                evicted=job.job.id in evicted,
            )
            for job in jobs
        ),
        returns=export.returns,
    )


def _waits(
    export: PromiseExport, job: AuditedJob, private_start: float | None
) -> tuple[float, float]:
    """Return the own and the private wait; both end with the span or the withdrawal at most."""
    end = min(export.until, job.withdrawn if job.withdrawn is not None else export.until)
    own = job.runs[0].start if job.runs else end
    private = end if private_start is None else private_start
    if not export.audits(
        job
    ):  # It was evicted and is older than the span, so it has no private wait.
        private = own
    return max(0.0, own - job.eligible), max(0.0, private - job.eligible)


def _verdict(
    export: PromiseExport,
    job: AuditedJob,
    waits: tuple[float, float],
    denial: Denial | None,
    *,
    evicted: bool,
) -> JobVerdict:
    own, private = waits
    allowance = export.allowance(job)
    verdict, causes = Verdict.KEPT, list[Cause]()
    if denial is not None:
        verdict, causes = _exceeded(job, denial, allowance)
    if evicted:
        verdict, causes = Verdict.VIOLATED, [*causes, Cause.EVICTED]
    return JobVerdict(
        job=job.job.id,
        eligible=job.eligible,
        started=bool(job.runs),
        own=own,
        private=private,
        bound=private + allowance,
        denied=denial.longest if denial is not None else 0.0,
        verdict=verdict,
        causes=tuple(sorted(causes, key=list(Cause).index)),
    )


def _exceeded(job: AuditedJob, denial: Denial, allowance: float) -> tuple[Verdict, list[Cause]]:
    """Return the verdict and causes of a job beyond its bound."""
    if denial.longest > allowance + ROUNDING:
        return Verdict.VIOLATED, [Cause.DENIED]
    if denial.with_causes > allowance + ROUNDING:
        return Verdict.EXCEEDED, list(denial.causes)
    if is_outside_cells(job):
        return Verdict.EXCEEDED, [Cause.REQUEST]
    return Verdict.EXCEEDED, [Cause.EARLIER_JOBS]


def _mean_guarantee(export: PromiseExport) -> float:
    """Return the guaranteed devices, as the mean over the span."""
    spans = [(export.since, export.snapshot.spec)]
    spans += [(change.at, change.spec) for change in export.changes]
    spans.sort(key=lambda span: span[0])
    ends = [at for at, _ in spans[1:]] + [export.until]
    total = sum(
        max(0.0, end - begin) * sum(guaranteed_devices(empty_engine(spec), export.name).values())
        for (begin, spec), end in zip(spans, ends, strict=True)
    )
    return total / max(export.until - export.since, ROUNDING)


def _used_seconds(export: PromiseExport) -> Iterator[float]:
    for job in export.jobs:
        for run in job.runs:
            begin = max(run.start, export.since)
            end = min(export.until if run.end is None else run.end, export.until)
            yield max(0.0, end - begin) * (run.demand or job.job.demand).devices
