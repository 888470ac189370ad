"""Reports of nodes about running jobs: logs, progress, events, profiles, metrics, MLflow runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from scheduling.core.watching.log_rules import RuleHit
from scheduling.parallelism.services import store_profile
from scheduling.runs.services.progress import record_training_events
from scheduling.watching.services import log_rules
from workers.services import goodput, metrics
from workers.services.dispatch import MemberRef
from workers.services.logs import keep_log
from workers.services.node_reports import NodeReport
from workers.services.points import PointBatch
from workers.services.reports import RankProgress
from workers.services.tracked_runs import TrackedChange, record_tracked
from workers.services.training_events import TrainingEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKept(NodeReport):
    """A log has been fetched up to ``end``."""

    order = 5
    rank: MemberRef
    first: int
    end: int

    def write(self, now: datetime) -> None:
        """Store the offset."""
        keep_log(self.rank, first=self.first, end=self.end, closed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(NodeReport):
    """A rank has reported progress."""

    order = 5
    rank: MemberRef
    progress: RankProgress
    at: datetime

    def write(self, now: datetime) -> None:
        """Add the progress to the attempt's sample."""
        goodput.add_progress(rank=self.rank, progress=self.progress, at=self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened(NodeReport):
    """A training has reported checkpoints."""

    order = 5
    rank: MemberRef
    happenings: Sequence[TrainingEvent]

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Write the events in the order of their jobs, whose rows a checkpoint changes as well."""
        for item in sorted(news, key=lambda item: item.rank.job_id):
            item.write(now)

    def write(self, now: datetime) -> None:
        """Add the events to the job's events."""
        record_training_events(
            job_id=self.rank.job_id,
            attempt=self.rank.attempt_number,
            notes=[(one.kind, one.text, one.facts) for one in self.happenings],
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled(NodeReport):
    """A job has reported a profile of its model; the document is not checked yet."""

    order = 5
    rank: MemberRef
    document: Mapping[str, Any]

    def write(self, now: datetime) -> None:
        """Check and store the profile."""
        store_profile(
            job_id=self.rank.job_id,
            attempt=self.rank.attempt_number,
            document=self.document,
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMeasured(NodeReport):
    """Lines of a log contain numbers of metrics."""

    order = 5
    rank: MemberRef
    batch: PointBatch
    at: datetime

    def write(self, now: datetime) -> None:
        """Add the points to the metrics of the job."""
        metrics.add_points(rank=self.rank, batch=self.batch, at=self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatched(NodeReport):
    """Lines of a log match log rules."""

    order = 5
    rank: MemberRef
    hits: Sequence[RuleHit]

    def write(self, now: datetime) -> None:
        """Add the matches to the job's events, and apply the actions of the rules."""
        log_rules.record_hits(
            seen=log_rules.MatchPosition(
                attempt_id=self.rank.attempt_id,
                member=f"{self.rank.role}-{self.rank.rank}",
                node_id=self.node_id,
            ),
            hits=self.hits,
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked(NodeReport):
    """A job has reported parameters or tags to its MLflow endpoint."""

    order = 5
    rank: MemberRef
    changes: Sequence[TrackedChange]

    def write(self, now: datetime) -> None:
        """Add them to the runs of the rank."""
        record_tracked(rank=self.rank, changes=self.changes)
