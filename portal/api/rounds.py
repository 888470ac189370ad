"""Scheduling rounds, shadow policies, what-ifs, and calibration of start estimates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, TypedDict

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body, rounded
from portal.api.queries import instant_from
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet, Nothing
from scheduling.estimates.queries import EstimateAccuracy, calibration
from scheduling.rounds.queries import RoundRow, recent_rounds, round_detail
from scheduling.rounds.services.evidence import read_shadows
from scheduling.storage.opening import open_storage
from scheduling.what_if.models import WhatIf
from scheduling.what_if.queries import ShadowRow, ShadowTotal, round_shadows
from scheduling.what_if.services.what_if import (
    ask_what_if,
    cancel_what_if,
    what_if_for,
    what_ifs_of,
)
from tenants.clock import database_now
from tenants.roles import Permission

SINCE: Final = OpenApiParameter(
    "since", str, description="ISO 8601 with offset; default: all stored rounds."
)


class ShadowJobsOut(TypedDict):
    """Jobs by ID in a shadow decision: starts, reasons of waiting jobs, and rules of preemptions.

    `only_shadow` and `only_live` list the starts that the other decision does not have.
    """

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
        storage = open_storage(settings.TESSERA.storage)
        rows = round_shadows(
            self.viewer, pk, read=lambda stored: read_shadows(storage=storage, stored=stored)
        )
        return Response({"number": pk, "shadows": [shadow_out(row) for row in rows]})


round_out = Body(RoundOut, RoundRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfIn:
    """A new what-if; ``until`` defaults to now. ``size_aware``: policies get the remaining work.

    ``guarantee``: devices by type that replace the guarantee of that time.
    """

    virtual_cluster: str
    policy: str
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    since: str
    until: str | None = None
    size_aware: bool = False
    guarantee: Mapping[str, int] = field(default_factory=dict)


def what_if_state(row: WhatIf) -> str:
    if row.finished_at is not None:
        return "failed" if row.fault else "done"
    return "queued" if row.begun_at is None else "running"


class WhatIfOut(TypedDict):
    """A what-if; ``state`` is queued, running, done or failed."""

    id: Annotated[int, From("pk")]
    state: Annotated[str, From(by=what_if_state)]
    virtual_cluster: Annotated[str, From("virtual_cluster.name")]
    policy: str
    policy_args: dict[str, Any]
    since: datetime
    until: datetime
    size_aware: bool
    guarantee: dict[str, int]
    step: int
    asked_by: Annotated[str, From(by=lambda row: row.asked_by.username if row.asked_by else "")]
    asked_at: datetime
    finished_at: datetime | None
    fault: str


class WhatIfDetailOut(WhatIfOut):
    """A what-if with its result; null until it is done."""

    result: Annotated[dict[str, Any] | None, From(by=lambda row: row.result or None)]


class WhatIfViewSet(ApiViewSet):
    """What-ifs: simulations of past days of a virtual cluster under another policy."""

    collection = "what-if"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=WhatIfOut, pages=True),
        "create": Op(body=WhatIfIn, answer=WhatIfDetailOut, status=202),
        "retrieve": Op(answer=WhatIfDetailOut),
        "cancel": Op(answer=WhatIfDetailOut),
    }

    def list(self, request: Request) -> Response:
        """List what-ifs of the last 24 h about virtual clusters whose jobs you may see."""
        return self.page(self.rows(what_ifs_of(self.viewer, now=database_now())), what_if_out)

    def create(self, request: Request) -> Response:
        """Create a what-if; its result is available at its address for 24 h."""
        wanted = read_body(WhatIfIn, request.data)
        now = database_now()
        asked = ask_what_if(
            viewer=self.viewer,
            virtual_cluster=wanted.virtual_cluster,
            policy=wanted.policy,
            policy_args=wanted.policy_args,
            since=instant_from("since", wanted.since),
            until=now if wanted.until is None else instant_from("until", wanted.until),
            size_aware=wanted.size_aware,
            guarantee=wanted.guarantee,
            now=now,
        )
        return Response(_detail_out(what_if_for(self.viewer, asked.pk, now=now)), status=202)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a what-if, with its result when it is done."""
        return Response(_detail_out(what_if_for(self.viewer, pk, now=database_now())))

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:
        """Cancel a what-if; a finished one does not change."""
        read_body(Nothing, request.data)
        return Response(_detail_out(cancel_what_if(self.viewer, pk, now=database_now())))


what_if_out = Body(WhatIfOut, WhatIf)
_detail_out = Body(WhatIfDetailOut, WhatIf)


class CalibrationOut(TypedDict):
    """Calibration of the start estimates of a virtual cluster over the last 30 days, in seconds.

    `withheld`: the number of forecasts that were too wide to be shown.
    """

    virtual_cluster: str
    estimates: int
    inside: Annotated[float, From("inside", rounded(4))]
    below: Annotated[float, From("below", rounded(4))]
    above: Annotated[float, From("above", rounded(4))]
    loss_seconds: Annotated[float, From("loss", rounded(1))]
    plain_loss_seconds: Annotated[float, From("plain_loss", rounded(1))]
    waiting: int
    withheld: int


class CalibrationsOut(TypedDict):
    """Calibration of each virtual cluster with estimates."""

    results: list[CalibrationOut]
    next_cursor: None


class EstimateViewSet(ApiViewSet):
    collection = "estimates"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {"list": Op(answer=CalibrationsOut)}

    def list(self, request: Request) -> Response:
        """Get the share of starts between p10 and p90 of their estimate, by virtual cluster."""
        found = calibration(self.viewer, now=database_now())
        return Response({"results": [calibration_out(row) for row in found], "next_cursor": None})


calibration_out = Body(CalibrationOut, EstimateAccuracy)
