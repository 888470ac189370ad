"""Audits of the sharing promise of a virtual cluster, also as CSV."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, TypedDict

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, rounded
from portal.api.history import FORMATS, MEDIA_TYPE, CsvRenderer, csv_file, day_of
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.what_if.queries import PromiseView, promise_view
from tenants.audit import record_once
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

DAYS: Final = timedelta(days=6)
"""Time from the first to the last day of the default span."""
LONGEST_SPAN: Final = timedelta(days=366)

HEAD: Final = (
    "job", "eligible", "started", "own_wait_s", "private_wait_s", "bound_s", "denied_s",
    "verdict", "causes",
)  # fmt: skip


class PromiseJobOut(TypedDict):
    """A guaranteed job: waits in seconds, and the verdict `kept`, `exceeded` or `violated`.

    `own_wait_s` ends with the first start, or with the audited day. `bound_s` is the wait on a
    private cluster + grace + two rounds. `denied_s` is the longest time for which a private
    cluster would have started the job although no cause applied.
    """

    job: int
    eligible: Annotated[
        datetime, From("eligible", lambda seconds: datetime.fromtimestamp(seconds, tz=UTC))
    ]
    started: bool
    own_wait_s: float
    private_wait_s: float
    bound_s: float
    denied_s: float
    verdict: str
    causes: list[str]


class PromisesOut(TypedDict):
    """Stored audits of several days. Members see only their own jobs, and null for the rest.

    `days` are the audited days, in UTC. Quantiles are `p50`, `p90`, `p99` and `max`, in seconds.
    """

    virtual_cluster: str
    since: Annotated[str, From("since", date.isoformat)]
    until: Annotated[str, From("until", date.isoformat)]
    days: Annotated[list[str], From("days", lambda days: [day.isoformat() for day in days])]
    guaranteed_device_hours: Annotated[float | None, From("guaranteed_hours", rounded(4))]
    used_device_hours: Annotated[float | None, From("used_hours", rounded(4))]
    verdicts: dict[str, int]
    causes: dict[str, int]
    own_wait_s: dict[str, float | None]
    private_wait_s: dict[str, float | None]
    returned_devices: int | None
    return_s: dict[str, float | None] | None
    jobs: list[PromiseJobOut]


class PromiseViewSet(ApiViewSet):
    """Audits of the sharing promise."""

    collection = "virtual-clusters"
    needs = Permission.VIEW_JOBS
    renderer_classes = (JSONRenderer, CsvRenderer)
    operations: ClassVar = {
        "promises": Op(
            takes=(
                OpenApiParameter(
                    "since", str, description="First day (UTC); default: 6 days before `until`."
                ),
                OpenApiParameter("until", str, description="Last day (UTC); default: yesterday."),
                OpenApiParameter(
                    "format",
                    str,
                    enum=FORMATS,
                    description="Format, instead of `Accept` (default json).",
                ),
            ),
            answer=PromisesOut,
            also={(200, MEDIA_TYPE): str},
        )
    }

    def promises(self, request: Request, pk: int) -> Response | HttpResponse:
        """Get waits of guaranteed jobs against a private cluster, by stored audits of whole days.

        With `Accept: text/csv` or `format=csv` the response is CSV, with one row per job.
        """
        self.query.choices("format", FORMATS)
        yesterday = database_now().astimezone(UTC).date() - timedelta(days=1)
        until = day_of(self.query, "until", yesterday)
        since = day_of(self.query, "since", max(until, date.min + DAYS) - DAYS)
        if until - since > LONGEST_SPAN:
            raise InvalidError(
                "The span is longer than 366 days.",
                field="since",
                value=str(since),
                remedy="Ask for at most 366 days.",
            )
        found = promise_view(self.viewer, pk, since=since, until=until)
        if isinstance(request.accepted_renderer, CsvRenderer):
            return promises_csv(self.viewer, found)
        return Response(promises_out(found))


promises_out = Body(PromisesOut, PromiseView)


def promises_csv(viewer: Viewer, found: PromiseView) -> HttpResponse:
    """Return the audited jobs as a CSV file and record the export in the audit."""
    name = f"promises-{found.virtual_cluster}-{found.since}-{found.until}.csv"
    record_once(
        actor=viewer,
        action="promises.export",
        object_type="virtualcluster",
        object_id=str(found.vc_id),
        object_name=found.virtual_cluster,
        after={"since": found.since, "until": found.until},
    )
    return csv_file(HEAD, map(_cells, found.jobs), name)


def _cells(job: Mapping[str, Any]) -> Sequence[str]:
    eligible = datetime.fromtimestamp(job["eligible"], tz=UTC).isoformat(timespec="seconds")
    texts = {**job, "eligible": eligible, "causes": " ".join(job["causes"])}
    return [str(texts[name]).lower() if name == "started" else str(texts[name]) for name in HEAD]
