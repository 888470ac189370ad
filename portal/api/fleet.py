"""History of the fleet: nodes, virtual clusters, waits, preemptions and idle devices."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import ClassVar, Final, TypedDict

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.history import FORMATS, MEDIA_TYPE, CsvRenderer, csv_file
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.core.fleet_history import STATES
from scheduling.usage.queries.fleet import (
    OTHERS,
    FleetHistory,
    FleetPart,
    FleetRange,
    fleet_history,
    free_points,
    preemption_counts,
    share_points,
    wait_points,
)
from tenants.clock import database_now
from tenants.roles import Permission

Cell = str | int | float | None
Row = tuple[Cell, ...]

_TAKES: Final = (
    OpenApiParameter(
        "part", str, enum=list(FleetPart), description="What to return (default nodes)."
    ),
    OpenApiParameter(
        "range", str, enum=list(FleetRange), description="Period before now (default 24h)."
    ),
    OpenApiParameter("virtual_cluster", str, description="Only this one, by name."),
    OpenApiParameter("since", str, description="Only intervals that begin at or after this time."),
    OpenApiParameter("until", str, description="Only intervals that begin before this time."),
    OpenApiParameter(
        "format", str, enum=FORMATS, description="Format, instead of `Accept` (default json)."
    ),
)


class FleetHistoryOut(TypedDict):
    """A table; `span_seconds` is the length of an interval, `time` its start in UTC."""

    part: str
    range: str
    span_seconds: int
    columns: list[str]
    rows: list[list[str | int | float | None]]


class FleetViewSet(ApiViewSet):
    """The history of the fleet."""

    collection = "fleet"
    needs = Permission.VIEW_CLUSTER
    operations: ClassVar = {
        "list": Op(takes=_TAKES, answer=FleetHistoryOut, also={(200, MEDIA_TYPE): str})
    }
    renderer_classes = (JSONRenderer, CsvRenderer)

    def list(self, request: Request) -> Response | HttpResponse:
        """Get one part of the history of the fleet, as means of intervals.

        Nodes and idle devices need the right to see the cluster. The other parts have the virtual
        clusters whose jobs you may see; in preemptions, all others are "another tenant".
        """
        self.query.choices("format", FORMATS)
        self.query.choices("part", list(FleetPart))
        self.query.choices("range", list(FleetRange))
        part = FleetPart(self.query.text("part", FleetPart.NODES))
        wanted = FleetRange(self.query.text("range", FleetRange.DAY))
        parts = {part, FleetPart.VIRTUAL_CLUSTERS} if part is FleetPart.WAITS else {part}
        history = fleet_history(
            self.viewer,
            wanted,
            parts,
            now=database_now(),
            virtual_cluster=self.query.text("virtual_cluster"),
        ).between(self.query.moment("since"), self.query.moment("until"))
        columns, rows = TABLES[part](history)
        if isinstance(request.accepted_renderer, CsvRenderer):
            cells = (["" if cell is None else str(cell) for cell in row] for row in rows)
            return csv_file(columns, cells, f"fleet-{part}-{wanted}.csv")
        return Response(
            FleetHistoryOut(
                part=part.value,
                range=wanted.value,
                span_seconds=history.span_seconds,
                columns=[*columns],
                rows=[[*row] for row in rows],
            )
        )


Table = tuple[tuple[str, ...], Iterator[Row]]


def _nodes(history: FleetHistory) -> Table:
    rows = (
        (
            _time(one.at),
            name,
            round(node.busy / node.reports, 4) if node.reports else None,
            round(node.held / max(one.samples, 1), 3),
            round(node.devices / max(one.samples, 1), 3),
            STATES[node.worst],
        )
        for one in history.intervals
        for name, node in one.totals.nodes.items()
    )
    return ("time", "node", "utilisation", "devices_held", "devices", "worst_state"), rows


def _virtual_clusters(history: FleetHistory) -> Table:
    rows: Iterator[Row] = (
        (
            _time(point.at),
            name,
            round(point.guarantee, 3),
            round(point.used, 3),
            round(point.borrowed, 3),
            round(point.lent, 3),
        )
        for pk, name in history.names.items()
        for point in share_points(history, pk)
    )
    return ("time", "virtual_cluster", "guarantee", "used", "borrowed", "lent"), rows


def _waits(history: FleetHistory) -> Table:
    rows = (
        (
            _time(point.at),
            point.started,
            *point.quantiles,
            round(point.queued, 3),
            round(point.queued_devices, 3),
        )
        for point in wait_points(history)
    )
    columns = ("time", "started", "p50_s", "p90_s", "p99_s", "queued_jobs", "queued_devices")
    return columns, rows


def _free(history: FleetHistory) -> Table:
    points = free_points(history)
    sizes = sorted({size for one in points for size in one.stranded})
    rows = (
        (
            _time(one.at),
            None if one.idle is None else round(one.idle, 3),
            *(
                None if one.idle is None else round(one.stranded.get(size, 0.0), 3)
                for size in sizes
            ),
        )
        for one in points
    )
    return ("time", "idle", *(f"stranded_{size}" for size in sizes)), rows


def _preemptions(history: FleetHistory) -> Table:
    def name(pk: int) -> str:
        return "another tenant" if pk == OTHERS else history.names.get(pk, "")

    rows = (
        (name(victim), name(winner), cause, count)
        for (victim, winner, cause), count in preemption_counts(history).items()
    )
    return ("preempted", "beneficiary", "cause", "preemptions"), rows


TABLES: Final[Mapping[FleetPart, Callable[[FleetHistory], Table]]] = {
    FleetPart.NODES: _nodes,
    FleetPart.VIRTUAL_CLUSTERS: _virtual_clusters,
    FleetPart.WAITS: _waits,
    FleetPart.FREE: _free,
    FleetPart.PREEMPTIONS: _preemptions,
}


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
