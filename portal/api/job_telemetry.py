"""Logs, goodput, device telemetry and checkpoint hashes of jobs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, NotRequired, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.core.determinism import Comparison
from scheduling.jobs.services.ownership import note_log_read
from scheduling.runs.queries.receipts import (
    CheckpointView,
    Compared,
    checkpoints_of_job,
    compare_jobs,
)
from tenants.clock import database_now
from workers.conf import worker_settings
from workers.device_curves import MOST_RANKS, USUAL_RANKS, JobCurves, device_curves
from workers.goodput import GoodputRow, goodput_of_job
from workers.job_logs import MOST_LOG_BYTES, LogPiece, read_log, search_log
from workers.services.logs import LogHit

_ATTEMPT: Final = OpenApiParameter(
    "attempt", int, description="Number of the attempt; default: all."
)
_COMPARED: Final = (
    _ATTEMPT,
    OpenApiParameter("with", int, description="The other job; default: this job."),
    OpenApiParameter("with_attempt", int, description="The other attempt; default: all."),
)


_LOG: Final = (
    OpenApiParameter("role", str, description="Role; default: the first."),
    OpenApiParameter("rank", int, description="Rank in the role (default 0)."),
    OpenApiParameter("attempt", int, description="Number of the attempt; default: the newest."),
    OpenApiParameter("offset", int, description="Offset of the first byte (default 0)."),
    OpenApiParameter(
        "limit", int, description="Maximum number of bytes, up to 1 MiB (default 65,536)."
    ),
    OpenApiParameter("q", str, description="Find lines that contain this text; case-insensitive."),
)
_TAKES: Final = (
    OpenApiParameter("first", int, description="Number of ranks to skip (default 0)."),
    OpenApiParameter(
        "ranks", int, description=f"Number of ranks, 1 to {MOST_RANKS} (default {USUAL_RANKS})."
    ),
)


class CheckpointOut(TypedDict):
    """A checkpoint; its hash covers all bits of the training state at this step."""

    at: datetime
    attempt: Annotated[int, From("receipt.attempt")]
    step: Annotated[int, From("receipt.step")]
    sha256: Annotated[str, From("receipt.sha256")]
    settings: Annotated[dict[str, str | int | float], From("receipt.settings")]
    bytes: Annotated[int | None, From("size")]
    seconds: float | None


class CheckpointsOut(TypedDict):
    """The latest checkpoints of a job, oldest first."""

    results: list[CheckpointOut]
    next_cursor: None


class DifferenceOut(TypedDict):
    """The first step at which two trainings differ, with both hashes."""

    step: int
    left: str
    right: str


def _first_difference(found: Comparison) -> DifferenceOut | None:
    if found.first_difference is None:
        return None
    return {"step": found.first_difference, "left": found.left, "right": found.right}


class ComparedOut(TypedDict):
    """A comparison of two trainings.

    ``same`` is the number of ``common`` steps with equal hashes before the first difference.
    ``settings`` has the reported settings that differ. ``changed_left`` and ``changed_right`` are
    steps that one training has saved with several hashes.
    """

    common: Annotated[int, From("comparison.common", len)]
    same: Annotated[int, From("comparison.same")]
    last_common: Annotated[
        int | None, From("comparison.common", lambda steps: steps[-1] if steps else None)
    ]
    first_difference: Annotated[DifferenceOut | None, From("comparison", _first_difference)]
    settings: Annotated[dict[str, list[str]], From("comparison.settings")]
    changed_left: list[int]
    changed_right: list[int]


checkpoint_out = Body(CheckpointOut, CheckpointView)
compared_out = Body(ComparedOut, Compared)


class DevicePointOut(TypedDict):
    """Means over an interval that starts at ``at``; null if the node reports no value.

    `utilisation` is a fraction from 0 to 1: of a GPU as reported by its driver, of a CPU slot the
    processor time of its processes divided by its processors. `memory_bytes` is the used memory.
    """

    at: datetime
    utilisation: float | None
    memory_bytes: int | None


class DeviceCurveOut(TypedDict):
    """A device; `memory_bytes` is its total memory, null if unknown."""

    node: str
    index: int
    device_type: str
    is_gpu: bool
    memory_bytes: int | None
    points: list[DevicePointOut]


class RankDevicesOut(TypedDict):
    """The devices of one rank in the newest attempt in which it had devices."""

    role: str
    rank: int
    devices: list[DeviceCurveOut]


def _next_first(curves: JobCurves) -> int | None:
    last = curves.first + len(curves.ranks)
    return last if last < curves.total else None


class TelemetryOut(TypedDict):
    """Telemetry of some ranks over the life of a job, in intervals of `span_seconds`.

    `next_first` is the value of `first` for the next ranks; null if there are no more ranks.
    """

    since: datetime | None
    until: datetime | None
    span_seconds: int
    ranks: Annotated[int, From("total")]
    results: Annotated[list[RankDevicesOut], From("ranks")]
    next_first: Annotated[int | None, From(by=_next_first)]


telemetry_out = Body(TelemetryOut, JobCurves)


class LogMatchOut(TypedDict):
    """A matching line, and the offset of its first byte."""

    offset: int
    text: str


class LogOut(TypedDict):
    """A part of a log. Offsets are in bytes, at character boundaries.

    If ``end`` is true, the log is complete. ``size`` is the number of bytes fetched from the node.
    ``offset`` is the actual start of the text, since older bytes may be pruned. With ``q`` the
    text is empty, and ``matches`` has the matching lines between ``offset`` and ``next_offset``.
    """

    text: str
    next_offset: int
    end: bool
    size: int
    offset: int
    role: str
    rank: int
    attempt: int
    matches: NotRequired[list[LogMatchOut]]


class GoodputOut(TypedDict):
    """The progress of an attempt in one interval; throughput and goodput in samples per second."""

    at: datetime
    attempt: int
    seconds: float
    step: int
    steps: int
    samples: float
    step_seconds: float | None
    loss: float | None
    throughput: float
    efficiency: float
    goodput: float
    devices: int


TELEMETRY: Final[Mapping[str, Op]] = {
    "logs": Op(takes=_LOG, answer=LogOut),
    "telemetry": Op(takes=_TAKES, answer=TelemetryOut),
    "goodput": Op(takes=PAGE, answer=GoodputOut, pages=True),
    "checkpoints": Op(takes=(_ATTEMPT,), answer=CheckpointsOut),
    "compare_checkpoints": Op(takes=_COMPARED, answer=ComparedOut),
}


class JobTelemetry(ApiViewSet):
    """Actions of jobs for logs, goodput, telemetry and checkpoints."""

    @action(detail=True, methods=["get"])
    def telemetry(self, request: Request, pk: int) -> Response:
        """Get utilisation and memory of a job's devices by rank, within their retention."""
        found = device_curves(
            self.viewer,
            pk,
            now=database_now(),
            first=self.query.number("first", default=0, most=100_000),
            most=self.query.number("ranks", default=USUAL_RANKS, least=1, most=MOST_RANKS),
        )
        return Response(telemetry_out(found))

    @action(detail=True, methods=["get"])
    def logs(self, request: Request, pk: int) -> Response:
        """Read a part of the log of a rank, or with `q` find lines that contain a text.

        A search covers `limit` bytes (default 1 MiB) and returns at most 200 lines. Continue from
        `next_offset` until `end` is true.
        """
        wanted = self.query.given.get("q")
        usual = 65_536 if wanted is None else MOST_LOG_BYTES
        asked: dict[str, Any] = {
            "storage": worker_settings().storage,
            "role": self.query.text("role"),
            "rank": self.query.number("rank", default=0, most=2**31),
            "attempt": self.query.number("attempt", default=0, most=2**31) or None,
            "offset": self.query.number("offset", default=0),
            "limit": self.query.number("limit", default=usual, least=1, most=MOST_LOG_BYTES),
        }
        if wanted is None:
            out = log_out(read_log(self.viewer, pk, **asked))
        else:
            out = log_found_out(*search_log(self.viewer, pk, wanted=wanted, **asked))
        note_log_read(viewer=self.viewer, job_id=pk)
        return Response(out)

    @action(detail=True, methods=["get"])
    def goodput(self, request: Request, pk: int) -> Response:
        """List the progress reports of a job by interval, oldest first."""
        found = goodput_of_job(
            self.viewer, pk, cursor=self.query.cursor(), limit=self.query.limit()
        )
        return self.page(found, goodput_out)

    @action(detail=True, methods=["get"])
    def checkpoints(self, request: Request, pk: int) -> Response:
        """List the latest checkpoints of a job with their hashes, oldest first."""
        attempt = self.query.number("attempt", default=0, most=2**31)
        found = checkpoints_of_job(self.viewer, pk, attempt=attempt or None)
        return Response({"results": [checkpoint_out(one) for one in found], "next_cursor": None})

    @action(detail=True, methods=["get"], url_path="checkpoints/compare")
    def compare_checkpoints(self, request: Request, pk: int) -> Response:
        """Compare the checkpoints of two jobs or attempts, and find the first difference."""
        attempt = self.query.number("attempt", default=0, most=2**31)
        other = self.query.number("with_attempt", default=0, most=2**31)
        found = compare_jobs(
            self.viewer,
            left=pk,
            left_attempt=attempt or None,
            right=self.query.number("with", default=pk, most=2**62),
            right_attempt=other or None,
        )
        return Response(compared_out(found))


log_out = Body(LogOut, LogPiece)


def log_found_out(piece: LogPiece, hits: Sequence[LogHit]) -> LogOut:
    """Return the response to a search: the searched range and the matching lines."""
    matches: list[LogMatchOut] = [{"offset": hit.offset, "text": hit.text} for hit in hits]
    return {**log_out(piece), "matches": matches}


goodput_out = Body(GoodputOut, GoodputRow)
