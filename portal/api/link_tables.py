"""Measured links between devices, and the probe jobs that measure them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, read_body
from portal.api.documents import submit_context_for
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.parallelism.links import LinkTableView, link_tables, probe_links
from tenants.clock import database_now


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbeIn:
    """A probe of 1 or 2 whole nodes of a device type, as a job in a virtual cluster."""

    device_type: str
    virtual_cluster: str
    nodes: int = 1


class LinkProbeOut(TypedDict):
    """The probe job."""

    job: int


class LinkTableOut(TypedDict):
    """Links of one class: a level of cells, or `network` between nodes without a common cell.

    `latency` is the time of the smallest message in seconds, `bandwidth` that of the largest one
    in bytes/s. `points` has `[primitive, processes, bytes, seconds]`. Planners use tables with
    `is_used`; older ones are replaced by projections.
    """

    device_type: str
    link_class: str
    transport: str
    latency: float
    bandwidth: float
    spread: float
    pairs: int
    points: list[list[Any]]
    nodes: list[str]
    job: int | None
    measured_at: datetime
    is_used: bool


class LinkTablesOut(TypedDict):
    """All measured links, by type and class."""

    results: list[LinkTableOut]
    next_cursor: None


link_table_out = Body(LinkTableOut, LinkTableView)


class LinkTableViewSet(ApiViewSet):
    collection = "link-tables"
    operations: ClassVar = {
        "list": Op(answer=LinkTablesOut),
        "create": Op(body=LinkProbeIn, answer=LinkProbeOut, status=201),
    }

    def list(self, request: Request) -> Response:
        """List the measured links; only for admins of nodes."""
        rows = link_tables(self.viewer, now=database_now())
        return Response({"results": [link_table_out(row) for row in rows], "next_cursor": None})

    def create(self, request: Request) -> Response:
        """Submit a job that measures links; only for admins of nodes."""
        wanted = read_body(LinkProbeIn, request.data)
        job = probe_links(
            viewer=self.viewer,
            device_type=wanted.device_type,
            virtual_cluster=wanted.virtual_cluster,
            nodes=wanted.nodes,
            submit_context=submit_context_for(self.viewer),
            now=database_now(),
        )
        return Response({"job": job.pk}, status=201)
