"""Rounds: what the scheduler has done, and how long it took."""

from datetime import datetime
from typing import ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.selectors.rounds import RoundRow, recent_rounds, round_detail


class RoundOut(TypedDict):
    """A committed round; ``fallbacks`` only for those who may edit virtual clusters."""

    number: int
    started_at: datetime
    committed_at: datetime
    duration_ms: float
    cause: str
    policies: list[str]
    topology_version: int
    queued: int
    running: int
    started: int
    preempted: int
    dropped: int
    fallbacks: list[str]
    timings_ms: dict[str, float]
    has_snapshot: bool
    snapshot_sha256: str
    snapshot_bytes: int


class RoundViewSet(ApiViewSet):
    """Scheduling rounds."""

    collection = "rounds"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=RoundOut, pages=True),
        "retrieve": Op(answer=RoundOut),
    }

    def list(self, request: Request) -> Response:
        """Rounds, the newest first."""
        found = recent_rounds(self.viewer, cursor=self.query.cursor(), limit=self.query.limit())
        return self.page(found, round_out)

    def retrieve(self, request: Request, pk: int) -> Response:
        """One round by its number."""
        return Response(round_out(round_detail(self.viewer, pk)))


def round_out(row: RoundRow) -> RoundOut:
    """A committed round."""
    return {
        "number": row.number,
        "started_at": row.started_at,
        "committed_at": row.committed_at,
        "duration_ms": row.duration_ms,
        "cause": row.cause,
        "policies": list(row.policies),
        "topology_version": row.topology_version,
        "queued": row.queued,
        "running": row.running,
        "started": row.started,
        "preempted": row.preempted,
        "dropped": row.dropped,
        "fallbacks": list(row.fallbacks),
        "timings_ms": dict(row.timings_ms),
        "has_snapshot": row.has_snapshot,
        "snapshot_sha256": row.snapshot_sha256,
        "snapshot_bytes": row.snapshot_bytes,
    }
