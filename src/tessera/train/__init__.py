"""In-job library: reports to Tessera, notices and settings; no effect outside a job.

`LogicalWorkers`, `Feed` and `AdaptiveBatch` need PyTorch, which is imported on their first
use.
"""

from typing import Any

from tessera.train.checkpoints import checkpoint, resume
from tessera.train.control import notice, should_yield
from tessera.train.environment import Job, device, job, secret
from tessera.train.loop import Loop
from tessera.train.reports import report

__all__ = [
    "AdaptiveBatch",
    "Feed",
    "Job",
    "LogicalWorkers",
    "Loop",
    "checkpoint",
    "device",
    "job",
    "notice",
    "report",
    "resume",
    "secret",
    "should_yield",
]


def __getattr__(name: str) -> Any:
    if name == "AdaptiveBatch":
        from tessera.train.adaptive import AdaptiveBatch  # noqa: PLC0415 - imports PyTorch

        return AdaptiveBatch
    if name == "LogicalWorkers":
        from tessera.train.logical import LogicalWorkers  # noqa: PLC0415 - imports PyTorch

        return LogicalWorkers
    if name == "Feed":
        from tessera.train.workers import Feed  # noqa: PLC0415 - imports PyTorch

        return Feed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
