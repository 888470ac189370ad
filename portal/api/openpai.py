"""OpenPAI's REST protocol (``/api/v2``) for existing scripts and editors.

The OpenAPI document omits these addresses. Errors are ``{code, message}`` as in OpenPAI, with
an additional list of faults.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.documents import (
    AnyTextParser,
    read_document,
    submission_of_import,
    submit_context_for,
)
from portal.api.errors import problem_response
from portal.api.openpai_shapes import (
    STATES,
    cluster_summary,
    device_amounts,
    job_document,
    job_summary,
)
from portal.api.views import NoSuchAddress, ViewerViewSet
from scheduling.clusters.queries.capacities import VcCapacity, device_types, vc_capacities
from scheduling.clusters.queries.cpu_pools import stored_pools
from scheduling.compat.openpai.job import translate_openpai
from scheduling.jobs.queries.job_detail import MemberView, job_detail
from scheduling.jobs.queries.jobs import visible_job
from scheduling.jobs.queries.named_jobs import (
    NamedJobFilter,
    count_named_jobs,
    list_named_jobs,
    newest_job_named,
)
from scheduling.jobs.services.idempotency import IdempotencyConflictError
from scheduling.jobs.services.submission import submit_job
from scheduling.runs.services.stopping import stop_job
from tenants.clock import database_now
from tenants.errors import ConflictError, InvalidError, NotFoundError
from tenants.roles import Permission

USUAL_ROWS: Final = 5_000
MOST_OFFSET: Final = 10_000_000
_ORDERS: Final[Mapping[str, str]] = {
    "jobName": "name",
    "submissionTime": "submitted",
    "username": "user",
    "vc": "virtual_cluster",
    "retries": "attempts",
    "totalGpuNumber": "devices",
    "completionTime": "finished",
}
_UNKNOWN: Final = "UNKNOWN"
_CODES: Final[Mapping[int, str]] = {
    400: "InvalidParametersError",
    401: "UnauthorizedUserError",
    403: "ForbiddenUserError",
    404: "NoApiError",
    409: "ConflictJobError",
}
_NAMED: Final[Mapping[str, str]] = {
    "unknown-vc": "NoVirtualClusterError",
    "no-job": "NoJobError",
    "no-job-config": "NoJobConfigError",
    "no-virtual-cluster": "NoVirtualClusterError",
    "invalid-spec": "InvalidProtocolError",
    "invalid-document": "InvalidProtocolError",
    "unsupported-field": "InvalidProtocolError",
}


class NoJobError(NotFoundError):
    """The caller has no access to a job of this name."""

    code = "no-job"


class NoJobConfigError(NotFoundError):
    """The job has no OpenPAI document that the caller may read."""

    code = "no-job-config"


class NoVirtualClusterError(NotFoundError):
    """The caller has no access to a virtual cluster of this name."""

    code = "no-virtual-cluster"


class TakenNameError(ConflictError):
    """The caller already has a job with this name."""


class OpenPaiViewSet(ViewerViewSet):
    """Base of all addresses of OpenPAI's protocol.

    ``takes`` maps each method to the query parameters that it accepts.
    """

    schema = None
    parser_classes = (AnyTextParser,)
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def parameters(self) -> Iterable[str]:
        return self.takes.get(self.action, ())

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return refusal


class NoSuchOpenPaiAddress(NoSuchAddress):
    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return refusal


def refusal(error: Exception, context: dict[str, Any]) -> Response | None:
    """Convert an error to OpenPAI's ``{code, message}`` with a list of faults."""
    found = problem_response(error, context)
    if found is None:
        return None
    problem: dict[str, Any] = found.data
    faults = problem["errors"]
    words = [f"{fault['field']}: {fault['message']}".removeprefix(": ") for fault in faults]
    kinds = (problem["code"], *(fault.get("code", "") for fault in faults))
    code = next((_NAMED[kind] for kind in kinds if kind in _NAMED), None)
    return Response(
        {
            "code": code or _CODES.get(found.status_code, "UnknownError"),
            "message": " ".join(words) or problem["title"],
            "errors": faults,
        },
        status=found.status_code,
        headers={name: value for name, value in found.headers.items() if name != "Content-Type"},
        content_type="application/json",
    )


class OpenPaiClusterViewSet(OpenPaiViewSet):
    """The cluster in OpenPAI's units: GPUs, processors and MiB."""

    needs = Permission.VIEW_CLUSTER
    takes: ClassVar = {"sku_types": ("vc",)}

    def list(self, request: Request) -> Response:
        found = vc_capacities(self.viewer)
        return Response({row.name: cluster_summary(row) for row in found})

    def retrieve(self, request: Request, name: str) -> Response:
        return Response(cluster_summary(self._named(name)))

    def sku_types(self, request: Request) -> Response:
        """Return the resources per device by device type; ``vc`` selects one virtual cluster."""
        name = self.query.text("vc")
        wanted = self._named(name).device_types if name else None
        return Response(
            {
                kind: device_amounts(share)
                for kind, share in device_types(self.viewer).items()
                if wanted is None or kind in wanted
            }
        )

    def _named(self, name: str) -> VcCapacity:
        found = next((row for row in vc_capacities(self.viewer) if row.name == name), None)
        if found is None:
            words = f"Virtual cluster {name} is not found."
            raise NoVirtualClusterError(words, field="vc", value=name)
        return found


class OpenPaiJobViewSet(OpenPaiViewSet):
    """Jobs under the names ``user~name``."""

    needs = Permission.VIEW_JOBS
    takes: ClassVar = {
        "list": (
            "username",
            "vc",
            "state",
            "keyword",
            "offset",
            "limit",
            "order",
            "withTotalCount",
        )
    }

    def list(self, request: Request) -> Response:
        filters = self._filters()
        order, descending = self._order()
        rows = list_named_jobs(
            self.viewer,
            filters,
            order=order,
            descending=descending,
            offset=self.query.number("offset", default=0, most=MOST_OFFSET),
            limit=self.query.number("limit", default=USUAL_ROWS, most=USUAL_ROWS),
        )
        found = [job_summary(row) for row in rows]
        if self.query.flag("withTotalCount"):
            total = count_named_jobs(self.viewer, filters)
            return Response({"totalCount": total, "data": found})
        return Response(found)

    def create(self, request: Request) -> Response:
        """Submit a document of protocol version 2; the caller must not have a job of this name."""
        sent: Any = request.data
        body = sent if isinstance(sent, bytes) else b""
        document = read_document(body, request.content_type or "")
        imported = translate_openpai(document, has_cpu_pools=bool(stored_pools()))
        name = str(imported.spec["name"])
        if newest_job_named(self.viewer, self.viewer.username, name) is not None:
            raise self._taken(name)
        try:
            _, is_new = submit_job(
                submission=submission_of_import(imported, body.decode(errors="replace")),
                viewer=self.viewer,
                submit_context=submit_context_for(self.viewer),
                now=database_now(),
                idempotency_key=f"openpai~{name}",
            )
        except IdempotencyConflictError:
            raise self._taken(name) from None
        if not is_new:
            raise self._taken(name)
        words = f"Update job {name} for user {self.viewer.username} successfully."
        return Response({"status": 202, "message": words}, status=202)

    def retrieve(self, request: Request, user: str, job: str) -> Response:
        detail = job_detail(self.viewer, self._id(user, job))
        base = request.build_absolute_uri(f"/api/v1/jobs/{detail.row.id}/logs/")

        def log_address(member: MemberView, attempt: int) -> str:
            return f"{base}?role={member.role}&rank={member.rank}&attempt={attempt}"

        return Response(job_document(detail, log_address))

    def config(self, request: Request, user: str, job: str) -> HttpResponse:
        found = visible_job(self.viewer, self._id(user, job))
        if found.source_format != "openpai" or not found.source_text:
            raise NoJobConfigError(
                f"Config of job {user}~{job} is not found.",
                field="job",
                value=job,
                remedy="Documents with secrets are not stored, and native jobs have no document.",
            )
        return HttpResponse(found.source_text, content_type="text/yaml; charset=utf-8")

    def execute(self, request: Request, user: str, job: str) -> Response:
        """Stop a job; restarting an ended job is not supported."""
        sent: Any = request.data
        body = sent if isinstance(sent, bytes) else b""
        wanted = read_document(body, request.content_type or "")
        value = wanted.get("value") if isinstance(wanted, Mapping) else None
        if value != "STOP":
            raise InvalidError(
                "This API can stop a job, but not start it again.",
                field="value",
                value=value,
                remedy='Send {"value": "STOP"}, or submit the document under another name.',
            )
        found = visible_job(self.viewer, self._id(user, job))
        stop_job(job=found, viewer=self.viewer, now=database_now())
        words = f"Execute job {user}~{job} successfully."
        return Response({"status": 202, "message": words}, status=202)

    def _id(self, user: str, job: str) -> int:
        found = newest_job_named(self.viewer, user, job)
        if found is None:
            raise NoJobError(f"Job {user}~{job} is not found.", field="job", value=job)
        return found

    def _taken(self, name: str) -> TakenNameError:
        return TakenNameError(
            f"Job {self.viewer.username}~{name} already exists.",
            field="name",
            value=name,
            remedy="Use another name.",
        )

    def _filters(self) -> NamedJobFilter:
        names = self.query.choices("state", [*dict.fromkeys(STATES.values()), _UNKNOWN])
        states = frozenset(ours for ours, theirs in STATES.items() if theirs in names)
        return NamedJobFilter(
            users=self.query.many("username"),
            virtual_clusters=self.query.many("vc"),
            states=states if names else None,
            keyword=self.query.text("keyword"),
        )

    def _order(self) -> tuple[str, bool]:
        given = self.query.text("order", "submissionTime,DESC")
        field, _, direction = given.partition(",")
        if field not in _ORDERS or direction not in ("ASC", "DESC"):
            raise InvalidError(
                "Jobs cannot be sorted by this field.",
                field="order",
                value=given,
                remedy=f"Write one of {', '.join(_ORDERS)}, with ,ASC or ,DESC.",
            )
        return _ORDERS[field], direction == "DESC"
