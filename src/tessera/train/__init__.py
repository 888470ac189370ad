"""What a training job says to Tessera and hears from it; outside a job every call does nothing."""

from tessera.train.control import notice, should_yield
from tessera.train.environment import Job, job, secret
from tessera.train.reports import report

__all__ = ["Job", "job", "notice", "report", "secret", "should_yield"]
