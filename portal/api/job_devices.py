"""Devices of jobs as the API shows them: utilisation and memory, rank by rank."""

from datetime import datetime
from typing import Annotated, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.response_models import Body, From
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from tenants.clock import database_now
from workers.device_curves import (
    MOST_RANKS,
    USUAL_RANKS,
    JobCurves,
    device_curves,
)

_TAKES: Final = (
    OpenApiParameter("first", int, description="Ranks to leave out at the beginning (0)."),
    OpenApiParameter(
        "ranks", int, description=f"How many ranks, 1 to {MOST_RANKS} ({USUAL_RANKS})."
    ),
)


class DevicePointOut(TypedDict):
    """The mean of a span that begins at ``at``; null where the node cannot tell.

    `utilisation` is a share, 0 to 1: of a GPU as its driver says, of a declared slot the processor
    time of what runs on it as a share of its processors. `memory_bytes` is what is in use.
    """

    at: datetime
    utilisation: float | None
    memory_bytes: int | None


class DeviceCurveOut(TypedDict):
    """One device; `memory_bytes` is how much it has, null where nobody knows."""

    node: str
    index: int
    device_type: str
    is_gpu: bool
    memory_bytes: int | None
    points: list[DevicePointOut]


class RankDevicesOut(TypedDict):
    """The devices of one rank, those of the newest attempt that had them."""

    role: str
    rank: int
    devices: list[DeviceCurveOut]


def _next_first(curves: JobCurves) -> int | None:
    last = curves.first + len(curves.ranks)
    return last if last < curves.total else None


class TelemetryOut(TypedDict):
    """Devices of some ranks of a job over its life, in points of `span_seconds`.

    `next_first` is the `first` with which the ranks after these are read; null after the last.
    """

    since: datetime | None
    until: datetime | None
    span_seconds: int
    ranks: Annotated[int, From("total")]
    results: Annotated[list[RankDevicesOut], From("ranks")]
    next_first: Annotated[int | None, From(by=_next_first)]


TELEMETRY: Final = Op(takes=_TAKES, answer=TelemetryOut)


class JobTelemetry(ApiViewSet):
    """The part of jobs that tells of their devices."""

    @action(detail=True, methods=["get"])
    def telemetry(self, request: Request, pk: int) -> Response:
        """Utilisation and memory of a job's devices, rank by rank, as long as they are kept."""
        found = device_curves(
            self.viewer,
            pk,
            now=database_now(),
            first=self.query.number("first", default=0, most=100_000),
            most=self.query.number("ranks", default=USUAL_RANKS, least=1, most=MOST_RANKS),
        )
        return Response(telemetry_out(found))


telemetry_out = Body(TelemetryOut, JobCurves)
