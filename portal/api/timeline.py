"""The timeline: jobs by device over a span of time."""

from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.response_models import Body, From
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.usage.queries.timeline import Timeline, timeline
from tenants.clock import database_now

DEFAULT_SPAN: Final = timedelta(hours=6)
_TAKES: Final = (
    OpenApiParameter(
        "since", str, description="ISO 8601 with offset; default: 6 h before `until`."
    ),
    OpenApiParameter("until", str, description="ISO 8601 with offset; default: now."),
    OpenApiParameter("node", int, description="Only this node."),
)


class TimelineNodeOut(TypedDict):
    """A node with the indices of its devices."""

    id: int
    name: str
    state: str
    device_type: str
    devices: list[int]


class TimelineRunOut(TypedDict):
    """An attempt on a node; ``job`` is null and names are empty for jobs you may not see."""

    node: Annotated[int, From("node_id")]
    devices: list[int]
    job: Annotated[int | None, From("job_id")]
    name: str
    user: str
    tenant: str
    virtual_cluster: str
    state: str
    opportunistic: bool
    reserved: bool
    start: datetime
    end: datetime | None
    latest_end: datetime | None


class TimelineOut(TypedDict):
    """Runs that overlap the span; runs before ``complete_since`` may be missing."""

    since: datetime
    until: datetime
    complete_since: datetime | None
    nodes: list[TimelineNodeOut]
    runs: list[TimelineRunOut]


class TimelineViewSet(ApiViewSet):
    """Jobs over devices."""

    collection = "timeline"
    operations: ClassVar = {"list": Op(takes=_TAKES, answer=TimelineOut)}

    def list(self, request: Request) -> Response:
        """Get the runs on each node, for at most 31 days and the newest 1,000 ended runs."""
        until = self.query.moment("until") or database_now()
        since = self.query.moment("since") or until - DEFAULT_SPAN
        node = self.query.number("node", default=0)
        found = timeline(self.viewer, since=since, until=until, node=node or None)
        return Response(timeline_out(found))


timeline_out = Body(TimelineOut, Timeline)
