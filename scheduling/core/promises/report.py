"""Result of an audit: one verdict per job, and its document."""

from dataclasses import dataclass
from typing import Any

from scheduling.core.promises.export import DeviceReturn
from scheduling.core.promises.figures import Cause, Verdict, figures


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
