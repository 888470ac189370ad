"""History of the cluster: usage, timeline of attempts, and audited changes."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Annotated, Any, ClassVar, Final, TypedDict

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, rounded
from portal.api.queries import Query
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.common.paging import Page
from scheduling.usage.queries.timeline import Timeline, timeline
from scheduling.usage.queries.usage import GROUPS, Hours, Usage, UsageLine, usage
from tenants.audit import record_once
from tenants.clock import database_now
from tenants.errors import ForbiddenError, InvalidError
from tenants.models import AuditEntry
from tenants.roles import Permission
from tenants.selectors import audit_page, tenant_for
from tenants.viewers import Viewer

MEDIA_TYPE: Final = "text/csv"
HEAD: Final = (
    "since", "until", "name", "tenant", "job", "user", "virtual_cluster", "unit",
    "guaranteed_hours", "borrowed_hours", "lost_preempted_hours", "lost_failed_hours",
    "cpu_hours",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
FORMATS: Final = ("json", "csv")
DEFAULT_SPAN: Final = timedelta(hours=6)
_USAGE_TAKES: Final = (
    OpenApiParameter(
        "since", str, description="First day (UTC); default: first day of the month of `until`."
    ),
    OpenApiParameter("until", str, description="Last day (UTC); default: today."),
    OpenApiParameter(
        "format", str, enum=FORMATS, description="Format, instead of `Accept` (default json)."
    ),
    OpenApiParameter("by", str, description=f"One of {', '.join(GROUPS)} (default tenant)."),
)
_TIMELINE_TAKES: Final = (
    OpenApiParameter(
        "since", str, description="ISO 8601 with offset; default: 6 h before `until`."
    ),
    OpenApiParameter("until", str, description="ISO 8601 with offset; default: now."),
    OpenApiParameter("node", int, description="Only this node."),
)
_AUDIT_FILTERS: Final = (
    OpenApiParameter("tenant", str, description="Name."),
    OpenApiParameter("actor", str, description="Name."),
    OpenApiParameter(
        "action", str, description="An action such as `member.add`, or a prefix such as `member.`."
    ),
    OpenApiParameter("object_type", str),
    OpenApiParameter("object_id", str),
)


class CsvRenderer(BaseRenderer):
    """Renderer that makes content negotiation accept ``text/csv``; problems are JSON."""

    media_type = MEDIA_TYPE
    format = "csv"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return a problem as JSON; the view itself writes CSV files."""
        rendered: bytes = JSONRenderer().render(data)
        return rendered


def csv_answer(viewer: Viewer, found: Usage, name: str) -> HttpResponse:
    """Return the usage lines of a period as a CSV file and record the export in the audit.

    The file has one row per usage line and device type. CPU-hours of jobs without devices are in
    the rows of CPU slots.
    """
    period = {"since": found.since, "until": found.until, "by": found.by}
    record_once(
        actor=viewer,
        action="usage.export",
        object_type="usage",
        object_id=name[:64],
        object_name=name,
        after=period,
    )
    rows = (
        _cells(found, line, unit, hours)
        for line in found.lines
        for unit, hours in (("gpu", line.gpu), ("slot", line.slot))
        if hours.held or hours.lost or hours.cpu
    )
    return csv_file(HEAD, rows, name)


def csv_file(head: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> HttpResponse:
    """Return rows as a CSV file that no cache stores."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(head)
    writer.writerows(rows)
    return HttpResponse(
        text.getvalue(),
        content_type=f"{MEDIA_TYPE}; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "private, no-store",
        },
    )


def _cells(found: Usage, line: UsageLine, unit: str, hours: Hours) -> list[str]:
    numbers = (
        *(hours.guaranteed, hours.borrowed, hours.lost_preempted, hours.lost_failed),
        hours.cpu,
    )
    texts = (
        str(found.since),
        str(found.until),
        line.name,
        line.tenant,
        "" if line.job is None else str(line.job),
        line.user,
        line.virtual_cluster,
        unit,
    )
    return [*map(plain_text, texts), *(f"{number:.4f}" for number in numbers)]


def plain_text(text: str) -> str:
    """Return a text with a prefix that stops spreadsheets from evaluating it as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


class HoursOut(TypedDict):
    """Hours of one device kind; lost hours are part of held hours.

    `guest` are hours as a guest of a device that another job holds; they are not charged.
    `delay` are hours by which guests have delayed the jobs on their devices. `cpu` are CPU-hours
    of jobs without devices; they are in `slot_hours`.
    """

    guaranteed: Annotated[float, From("guaranteed", rounded(4))]
    borrowed: Annotated[float, From("borrowed", rounded(4))]
    lost_preempted: Annotated[float, From("lost_preempted", rounded(4))]
    lost_failed: Annotated[float, From("lost_failed", rounded(4))]
    guest: Annotated[float, From("guest", rounded(4))]
    delay: Annotated[float, From("delay", rounded(4))]
    cpu: Annotated[float, From("cpu", rounded(4))]


class UsageLineOut(TypedDict):
    """Usage by one tenant, person, job or other group; GPUs and CPU slots are separate."""

    name: str
    tenant: str
    job: int | None
    user: str
    virtual_cluster: str
    gpu_hours: Annotated[HoursOut, From("gpu")]
    slot_hours: Annotated[HoursOut, From("slot")]


class UsageOut(TypedDict):
    """The usage of a period; a closed month has ``closed_at`` and the hash of its rows."""

    since: Annotated[str, From("since", date.isoformat)]
    until: Annotated[str, From("until", date.isoformat)]
    by: str
    summed_until: datetime | None
    closed_at: Annotated[datetime | None, From("closed")]
    sha256: str
    is_partial: bool
    gpu_hours: Annotated[HoursOut, From("gpu")]
    slot_hours: Annotated[HoursOut, From("slot")]
    lines: list[UsageLineOut]


class UsageViewSet(ApiViewSet):
    """Usage by person, tenant and virtual cluster."""

    collection = "usage"
    needs = Permission.VIEW_JOBS
    renderer_classes = (JSONRenderer, CsvRenderer)
    operations: ClassVar = {
        "list": Op(takes=_USAGE_TAKES, answer=UsageOut, also={(200, MEDIA_TYPE): str})
    }

    def list(self, request: Request) -> Response | HttpResponse:
        """Get device-hours of a period: of the cluster (admin), of the tenant (lead) or your own.

        With `Accept: text/csv` or `format=csv` the response is CSV, with one row per line and
        device kind (GPU or CPU slot).
        """
        self.query.choices("format", FORMATS)
        today = database_now().astimezone(UTC).date()
        until = day_of(self.query, "until", today)
        found = usage(
            self.viewer,
            since=day_of(self.query, "since", until.replace(day=1)),
            until=until,
            by=self.query.text("by", "tenant"),
        )
        if isinstance(request.accepted_renderer, CsvRenderer):
            return csv_answer(
                self.viewer, found, f"usage-{found.since}-{found.until}-{found.by}.csv"
            )
        return Response(usage_out(found))


def day_of(query: Query, name: str, default: date) -> date:
    """Return a day of the query parameters.

    Raises:
        InvalidError: it is not a valid day.
    """
    given = query.text(name)
    if not given:
        return default
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise InvalidError(
            "This is not a valid day.", field=name, value=given, remedy="Write 2026-03-31."
        ) from None


usage_out = Body(UsageOut, Usage)


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
    """Attempts that overlap the period; attempts before ``complete_since`` may be missing."""

    since: datetime
    until: datetime
    complete_since: datetime | None
    nodes: list[TimelineNodeOut]
    runs: list[TimelineRunOut]


class TimelineViewSet(ApiViewSet):
    collection = "timeline"
    operations: ClassVar = {"list": Op(takes=_TIMELINE_TAKES, answer=TimelineOut)}

    def list(self, request: Request) -> Response:
        """Get the runs on each node, for at most 31 days and the newest 1,000 ended runs."""
        until = self.query.moment("until") or database_now()
        since = self.query.moment("since") or until - DEFAULT_SPAN
        node = self.query.number("node", default=0)
        found = timeline(self.viewer, since=since, until=until, node=node or None)
        return Response(timeline_out(found))


timeline_out = Body(TimelineOut, Timeline)


class AuditOut(TypedDict):
    """An audited change; secrets are masked."""

    id: Annotated[int, From("pk")]
    at: datetime
    actor: Annotated[str, From("actor_name")]
    token_prefix: str
    action: str
    object_type: str
    object_id: str
    object_name: str
    tenant: Annotated[str | None, From(by=lambda entry: entry.tenant and entry.tenant.name)]
    before: Any
    after: Any
    request_id: str
    message: str


class AuditViewSet(ApiViewSet):
    collection = "audit"
    needs = Permission.READ_AUDIT
    operations: ClassVar = {
        "list": Op(takes=(*_AUDIT_FILTERS, *PAGE), answer=AuditOut, pages=True)
    }

    def list(self, request: Request) -> Response:
        """List audited changes in tenants that you lead (cluster admins: all), newest first."""
        if not self.viewer.can_somewhere(Permission.READ_AUDIT):
            raise ForbiddenError(
                "You do not lead a tenant.",
                field="permission",
                value=str(Permission.READ_AUDIT),
                remedy="Ask a lead of the tenant.",
            )
        name = self.query.text("tenant")
        found = audit_page(
            self.viewer,
            cursor=self.query.cursor(),
            limit=self.query.limit(),
            tenant_id=tenant_for(self.viewer, name).pk if name else None,
            actor=self.query.text("actor"),
            action=self.query.text("action"),
            object_type=self.query.text("object_type"),
            object_id=self.query.text("object_id"),
        )
        if self.query.cursor() is None:
            record_once(
                actor=self.viewer,
                action="audit.export",
                object_type="audit",
                object_id=name,
                object_name=name or "audit",
            )
        return self.page(Page(found.rows, found.next_cursor), audit_out)


audit_out = Body(AuditOut, AuditEntry)
