"""Reports of nodes with changes of MLflow runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from workers.services.dispatch import MemberRef
from workers.services.node_reports import NodeReport
from workers.services.tracked_runs import TrackedChange, record_tracked


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked(NodeReport):
    """A job has reported parameters or tags to its MLflow endpoint."""

    order = 5
    rank: MemberRef
    changes: Sequence[TrackedChange]

    def write(self, now: datetime) -> None:
        """Add them to the runs of the rank."""
        record_tracked(rank=self.rank, changes=self.changes)
