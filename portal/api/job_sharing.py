"""Device sharing of jobs: guests on their devices, or the holder of their device."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypedDict

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, read_body
from portal.api.history import FORMATS, MEDIA_TYPE, CsvRenderer, csv_file
from portal.api.schema import Op
from portal.api.views import ApiViewSet, Nothing
from scheduling.clusters.queries.shared_devices import SharedMinuteRow, sharing_minutes
from scheduling.jobs.queries.jobs import visible_job
from scheduling.runs.queries.sharing import JobSharing, job_sharing, slowdown_percent
from scheduling.runs.services.guests import stop_sharing
from tenants.clock import database_now


class SharedWithOut(TypedDict):
    """Another job on a device; `job_id` is null and `name` empty if you may not see it.

    `slot` is 0 for the holder of the device and 1 to 3 for others. `role` is `holder`, `guest` or
    `peer` (an equal of the holder). `duty` is the share of the time in which the job works beside
    the holder, from 0 to 1. `tier` is how it is suspended for the turn of another job now, since
    `suspended_since`: `T0` (it waits at its gate), `T1` (frozen) or `T2` (its device memory is in
    host memory); it is empty while the job works.
    """

    job_id: int | None
    name: str
    slot: int
    leaving: bool
    memory: int | None
    most: int | None
    duty: float | None
    frozen: bool
    role: str
    tier: str
    suspended_since: datetime | None


class SharedDeviceOut(TypedDict):
    """A shared device; figures are null until the node has reported them.

    `loss` is the share of its own pace that the holder loses, with its 95 % interval. `baseline`
    is the time of one of its steps without guests, in seconds. `memory_limit` and `compute_limit`
    are `enforced`, `cooperative` or `none`. `limit` is the loss that the holder allows: its
    slowdown for guests, and 0.5 for an equal. `turn_seconds` is 0 unless the jobs take
    turns. `role`, `tier` and `suspended_since` are those of this job.
    """

    node: str
    index: int
    device_type: str
    mode: str
    memory_limit: str
    compute_limit: str
    others: list[SharedWithOut]
    at: datetime | None
    loss: float | None
    loss_low: float | None
    loss_high: float | None
    baseline: float | None
    open: float | None
    delay_seconds: float
    closings: int
    limit: float
    turn_seconds: float
    role: str
    tier: str
    suspended_since: datetime | None


class JobSharingOut(TypedDict):
    """Device sharing of a job; `role` is `holder`, `guest`, `peer` or empty.

    `guests` are the guests that the job allows. `enabled` is whether the cluster shares devices.
    `suspensions` and `suspended_seconds` count the turns of others in the current attempt.
    """

    job_id: int
    role: str
    guests: str
    slowdown_percent: int
    enabled: bool
    stopped_at: datetime | None
    guest_seconds: float
    devices: list[SharedDeviceOut]
    suspensions: int
    suspended_seconds: float


job_sharing_out = Body(JobSharingOut, JobSharing)


class SharedMinuteOut(TypedDict):
    """The shared devices of a job in one minute; figures are null if the node reported none.

    `loss` is the largest loss of the job with its 95 % interval, `open` the smallest share of the
    time in which guests could run. `delay_seconds` and `closings` count since the job started. Of
    the guests, `peers` shared the device as equals; `suspended` jobs waited for their turn, with
    the holder. `limit` is the loss that the job allowed then, and `duty` the share of the time in
    which its only guest or equal worked.
    """

    minute: datetime
    devices: int
    guests: int
    frozen: int
    loss: float | None
    loss_low: float | None
    loss_high: float | None
    open: float | None
    delay_seconds: float
    closings: int
    over_limit: bool
    peers: int
    suspended: int
    limit: float
    duty: float | None


class SharingHistoryOut(TypedDict):
    """The history of a job that shared its devices, oldest first, at most the last day."""

    job_id: int
    slowdown_percent: int
    minutes: list[SharedMinuteOut]


shared_minute_out = Body(SharedMinuteOut, SharedMinuteRow)
HEAD: Final = tuple(SharedMinuteOut.__annotations__)

SHARING: Final[Mapping[str, Op]] = {
    "sharing": Op(answer=JobSharingOut),
    "sharing_history": Op(
        takes=(
            OpenApiParameter(
                "format",
                str,
                enum=FORMATS,
                description="Format, instead of `Accept` (default json).",
            ),
        ),
        answer=SharingHistoryOut,
        also={(200, MEDIA_TYPE): str},
    ),
    "stop_sharing": Op(answer=JobSharingOut),
}


class JobSharingActions(ApiViewSet):
    """Actions of jobs for device sharing."""

    @action(detail=True, methods=["get"])
    def sharing(self, request: Request, pk: int) -> Response:
        """Get the device sharing of a job: jobs on its devices, and measured loss."""
        return Response(job_sharing_out(job_sharing(self.viewer, pk)))

    @action(
        detail=True,
        methods=["get"],
        url_path="sharing/history",
        renderer_classes=(JSONRenderer, CsvRenderer),
    )
    def sharing_history(self, request: Request, pk: int) -> Response | HttpResponse:
        """Get the loss of a job by guests on its devices by minute, also as CSV."""
        self.query.choices("format", FORMATS)
        job = visible_job(self.viewer, pk)
        percent = slowdown_percent(job)
        minutes = [shared_minute_out(row) for row in sharing_minutes(job.pk, percent / 100)]
        if isinstance(request.accepted_renderer, CsvRenderer):
            rows = ([_cell(value) for value in row.values()] for row in minutes)
            return csv_file(HEAD, rows, f"sharing-{job.pk}.csv")
        return Response({"job_id": job.pk, "slowdown_percent": percent, "minutes": minutes})

    @action(detail=True, methods=["post"], url_path="sharing/stop")
    def stop_sharing(self, request: Request, pk: int) -> Response:
        """Stop device sharing of a job: its guests leave, and its devices take no others."""
        read_body(Nothing, request.data)
        stop_sharing(job=visible_job(self.viewer, pk), viewer=self.viewer, now=database_now())
        return Response(job_sharing_out(job_sharing(self.viewer, pk)))


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None else str(value)
