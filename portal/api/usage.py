"""Device-hours of a period."""

from datetime import UTC, date, datetime
from typing import Annotated, ClassVar, Final, TypedDict

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.response_models import Body, From, rounded
from portal.api.schema import Op
from portal.api.usage_csv import MEDIA_TYPE, CsvRenderer, csv_answer
from portal.api.views import ApiViewSet
from scheduling.usage.queries.usage import GROUPS, Usage, usage
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission

_FORMATS: Final = ("json", "csv")
_TAKES: Final = (
    OpenApiParameter(
        "since", str, description="First day (UTC); default: first day of the month of `until`."
    ),
    OpenApiParameter("until", str, description="Last day (UTC); default: today."),
    OpenApiParameter(
        "format", str, enum=_FORMATS, description="Format, in place of `Accept` (default json)."
    ),
    OpenApiParameter("by", str, description=f"One of {', '.join(GROUPS)} (default tenant)."),
)


class HoursOut(TypedDict):
    """Hours of one device kind; lost hours are part of held hours."""

    guaranteed: Annotated[float, From("guaranteed", rounded(4))]
    borrowed: Annotated[float, From("borrowed", rounded(4))]
    lost_preempted: Annotated[float, From("lost_preempted", rounded(4))]
    lost_failed: Annotated[float, From("lost_failed", rounded(4))]


class UsageLineOut(TypedDict):
    """The use of a tenant, person, job or other group; GPUs and CPU slots are separate."""

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
        "list": Op(takes=_TAKES, answer=UsageOut, also={(200, MEDIA_TYPE): str})
    }

    def list(self, request: Request) -> Response | HttpResponse:
        """Get device-hours of a period: all for cluster admins, the tenant for leads, else yours.

        With `Accept: text/csv` or `format=csv` the response is CSV, with one row per line and
        device kind (GPU or CPU slot).
        """
        self.query.choices("format", _FORMATS)
        today = database_now().astimezone(UTC).date()
        until = self._day("until", today)
        found = usage(
            self.viewer,
            since=self._day("since", until.replace(day=1)),
            until=until,
            by=self.query.text("by", "tenant"),
        )
        if isinstance(request.accepted_renderer, CsvRenderer):
            return csv_answer(
                self.viewer, found, f"usage-{found.since}-{found.until}-{found.by}.csv"
            )
        return Response(usage_out(found))

    def _day(self, name: str, default: date) -> date:
        given = self.query.text(name)
        if not given:
            return default
        try:
            return date.fromisoformat(given)
        except ValueError:
            raise InvalidError(
                "This is not a day.", field=name, value=given, remedy="Write 2026-03-31."
            ) from None


usage_out = Body(UsageOut, Usage)
