"""Rounds: decisions of the scheduler and their duration."""

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.response_models import Body
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.rounds.models import Round
from scheduling.rounds.queries import RoundRow, recent_rounds, round_detail
from scheduling.rounds.services.evidence import read_shadows
from scheduling.what_if.queries import ShadowRow, ShadowTotal, round_shadows

SINCE: Final = OpenApiParameter(
    "since", str, description="ISO 8601 with offset; default: all stored rounds."
)


class ShadowJobsOut(TypedDict):
    """IDs of jobs that it would have started, left queued (with reason) and stopped (by rule)."""

    starts: list[int]
    only_shadow: list[int]
    only_live: list[int]
    leaving: dict[str, str]
    sizes: dict[str, int]
    why: dict[str, str]


class ShadowOut(TypedDict):
    """The decision of a shadow policy for a round; ``jobs`` is null after the file is pruned."""

    virtual_cluster: str
    policy: str
    policy_args: dict[str, Any]
    at: datetime
    duration_ms: float
    fault: str
    agrees: bool
    starts: int
    both: int
    only_shadow: int
    only_live: int
    leaving: int
    jobs: ShadowJobsOut | None


class RoundShadowsOut(TypedDict):
    """The shadow policies of a round."""

    number: int
    shadows: list[ShadowOut]


class ShadowTotalOut(TypedDict):
    """Totals of a shadow policy over all rounds that it has decided."""

    virtual_cluster: str
    policy: str
    policy_args: dict[str, Any]
    rounds: int
    agreeing: int
    both: int
    only_shadow: int
    only_live: int
    leaving: int
    faults: int
    mean_ms: float
    max_ms: float
    since: datetime
    until: datetime


class ShadowTotalsOut(TypedDict):
    """The shadow policies of a virtual cluster."""

    shadows: list[ShadowTotalOut]


shadow_out = Body(ShadowOut, ShadowRow)
shadow_total_out = Body(ShadowTotalOut, ShadowTotal)


class RoundOut(TypedDict):
    """A committed round; ``fallbacks`` requires the right to edit virtual clusters."""

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
        "shadows": Op(answer=RoundShadowsOut),
    }

    def list(self, request: Request) -> Response:
        """List rounds, newest first."""
        found = recent_rounds(self.viewer, cursor=self.query.cursor(), limit=self.query.limit())
        return self.page(found, round_out)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a round by its number."""
        return Response(round_out(round_detail(self.viewer, pk)))

    @action(detail=True, methods=["get"])
    def shadows(self, request: Request, pk: int) -> Response:
        """Get the decisions of shadow policies for a round, in your virtual clusters."""
        read = partial(_answers, Path(settings.TESSERA.data_dir))
        rows = round_shadows(self.viewer, pk, read=read)
        return Response({"number": pk, "shadows": [shadow_out(row) for row in rows]})


def _answers(data_dir: Path, stored: Round) -> list[dict[str, Any]]:
    return read_shadows(data_dir=data_dir, stored=stored)


round_out = Body(RoundOut, RoundRow)
