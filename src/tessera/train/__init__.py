"""In-job library: reports to Tessera, notices and settings. Outside a job, it has no effect.

`LogicalWorkers`, `Feed`, `AdaptiveBatch` and `Hybrid` need PyTorch, which is imported on their
first use.
"""

from typing import Any

from tessera.train.checkpoints import checkpoint, resume
from tessera.train.control import notice, should_yield
from tessera.train.environment import Job, device, job, secret
from tessera.train.hybrid.plans import ParallelPlan, PlanError, Stage, plan_of_job
from tessera.train.loop import Loop
from tessera.train.reports import report, report_parameters

__all__ = [
    "AdaptiveBatch",
    "Feed",
    "Hybrid",
    "Job",
    "LogicalWorkers",
    "Loop",
    "ParallelPlan",
    "PlanError",
    "Stage",
    "checkpoint",
    "device",
    "job",
    "notice",
    "plan_of_job",
    "report",
    "report_parameters",
    "resume",
    "secret",
    "should_yield",
]


def __getattr__(name: str) -> Any:
    if name == "AdaptiveBatch":
        from tessera.train.adaptive import AdaptiveBatch  # noqa: PLC0415 - imports PyTorch

        return AdaptiveBatch
    if name == "Hybrid":
        from tessera.train.hybrid.training import Hybrid  # noqa: PLC0415 - imports PyTorch

        return Hybrid
    if name == "LogicalWorkers":
        from tessera.train.logical import LogicalWorkers  # noqa: PLC0415 - imports PyTorch

        return LogicalWorkers
    if name == "Feed":
        from tessera.train.workers import Feed  # noqa: PLC0415 - imports PyTorch

        return Feed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
