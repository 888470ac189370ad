"""Failures of jobs on one device against those of the fleet: a Bayesian rate, pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PRIOR_JOBS: Final = 10.0
"""Weight of the fleet's rate in the prior, in jobs."""
SUSPECT_RATIO: Final = 3.0
"""A device is suspect if its rate probably exceeds that of the fleet by this factor."""
CONFIDENCE: Final = 0.95
LEAST_JOBS: Final = 3
LEAST_TENANTS: Final = 2
"""Failures of one tenant may have a cause in its own program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOnDevice:
    """A job that has left a device; a job with several attempts there counts once."""

    job: int
    tenant: int
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFailures:
    """Failures on a device.

    Attributes:
        jobs: distinct jobs that have left the device.
        failed: those of which an attempt failed there; ``tenants`` their number of tenants.
        rate: posterior mean of the failure rate.
        probability: probability that the rate exceeds ``SUSPECT_RATIO`` times the fleet's rate.
    """

    jobs: int
    failed: int
    tenants: int
    rate: float
    probability: float

    @property
    def is_suspect(self) -> bool:
        """Return whether to propose a quarantine."""
        return (
            self.failed >= LEAST_JOBS
            and self.tenants >= LEAST_TENANTS
            and self.probability >= CONFIDENCE
        )


def fleet_rate(jobs: int, failed: int) -> float:
    """Return the failure rate of the fleet, which is never 0 or 1 (rule of succession)."""
    return (failed + 1) / (jobs + 2)


def failures_of(seen: Iterable[JobOnDevice], fleet: float) -> DeviceFailures:
    """Judge one device.

    Args:
        seen: its jobs; several entries of a job count once, as failed if one of them failed.
        fleet: failure rate of the fleet, above 0 and below 1.

    Returns:
        Counts with the rate under the prior Beta(fleet x PRIOR_JOBS, (1 - fleet) x PRIOR_JOBS).
    """
    failed_by_job: dict[int, bool] = {}
    tenants = set()
    for one in seen:
        failed_by_job[one.job] = failed_by_job.get(one.job, False) or one.failed
        if one.failed:
            tenants.add(one.tenant)
    failed = sum(failed_by_job.values())
    return judged(jobs=len(failed_by_job), failed=failed, tenants=len(tenants), fleet=fleet)


def judged(*, jobs: int, failed: int, tenants: int, fleet: float) -> DeviceFailures:
    """Judge one device by its numbers of distinct jobs, failed jobs, and their tenants."""
    a = fleet * PRIOR_JOBS + failed
    b = (1 - fleet) * PRIOR_JOBS + jobs - failed
    limit = min(SUSPECT_RATIO * fleet, 0.999)
    return DeviceFailures(
        jobs=jobs,
        failed=failed,
        tenants=tenants,
        rate=a / (a + b),
        probability=1.0 - beta_cdf(limit, a, b),
    )


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the distribution function of Beta(a, b) at ``x``, by Lentz's continued fraction.

    Numerical Recipes, section 6.4; accurate to about 1e-12 for ``a`` and ``b`` up to 1e5.
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x > (a + 1) / (a + b + 2):
        return 1.0 - front * _fraction(1.0 - x, b, a) / b
    return front * _fraction(x, a, b) / a


_TINY: Final = 1e-300
_MOST_STEPS: Final = 1000


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, _inverse(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _MOST_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = _inverse(1.0 + term * d)
            c = 1.0 + term / c
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


def _inverse(value: float) -> float:
    return 1.0 / (value if abs(value) > _TINY else _TINY)
