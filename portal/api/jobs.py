"""Jobs: submission, plans, lists, details, and actions such as stop and hold."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, TypedDict

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body
from portal.api.documents import (
    round_config,
    submission_from,
    submissions_from,
    submit_context_for,
)
from portal.api.job_explanations import (
    EXPLANATIONS,
    JobExplanations,
    JobPlanOut,
    draft_grids_out,
    plan_out,
)
from portal.api.job_metrics import METRICS, JobMetrics
from portal.api.job_shapes import (
    AcceptedJobOut,
    AttemptOut,
    EventOut,
    JobDetailOut,
    JobOut,
    ListedJobOut,
    WhyOut,
    accepted_job_out,
    attempt_out,
    event_out,
    job_detail_out,
    job_out,
    listed_job_out,
    why_out,
)
from portal.api.job_sharing import SHARING, JobSharingActions
from portal.api.job_telemetry import TELEMETRY, JobTelemetry
from portal.api.schema import IDEMPOTENCY_KEY, PAGE, Op
from portal.api.views import Nothing, versioned
from scheduling.core.jobspec import json_schema
from scheduling.estimates.services.submit_plans import plan_job
from scheduling.jobs.models import Job
from scheduling.jobs.queries.events import events_of_job
from scheduling.jobs.queries.instances import nodes_of_jobs, parts_among, parts_of_job
from scheduling.jobs.queries.job_detail import attempts_of_job, job_detail
from scheduling.jobs.queries.jobs import (
    LONGEST_SEARCH,
    JobFilter,
    rows_of_jobs,
    rows_of_new_jobs,
    visible_job,
)
from scheduling.jobs.queries.ordered_jobs import SORTED_JOBS, JobOrder, job_order, page_in_order
from scheduling.jobs.queries.why import why
from scheduling.jobs.services.amendments import hold_job, release_hold
from scheduling.jobs.services.submission import clone_job, submit_job, submit_jobs
from scheduling.parallelism.drafts import grids_of_document
from scheduling.runs.services.stopping import stop_job
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission

_FILTERS: Final = (
    OpenApiParameter("state", str, description="`live`, `ended` or states; repeat or use commas."),
    OpenApiParameter("virtual_cluster", str, description="Name."),
    OpenApiParameter("tenant", str, description="Name."),
    OpenApiParameter("user", str, description="Name of the owner."),
    OpenApiParameter("mine", bool, description="`1`: only your own jobs."),
    OpenApiParameter("reason", str, description="A reason code."),
    OpenApiParameter("label", str, description="`name=value`."),
    OpenApiParameter("q", str, description="Part of the name or note, or the job ID."),
    OpenApiParameter(
        "ended_since",
        datetime,
        description="Only jobs that ended after this time or have not ended.",
    ),
    OpenApiParameter(
        "submitted_until", datetime, description="Only jobs submitted until this time."
    ),
    OpenApiParameter(
        "order",
        str,
        enum=[order.value for order in JobOrder],
        description=f"Default `newest`. Orders other than `newest` and `oldest` sort the newest "
        f"{SORTED_JOBS:,} matching jobs.",
    ),
)
_SPEC: Final = json_schema()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopIn:
    """An optional message, recorded in the history of the job."""

    message: str = ""


class AcceptedJobsOut(TypedDict):
    """Jobs that were accepted together, in the order of the request."""

    results: list[AcceptedJobOut]


class AttemptsOut(TypedDict):
    """All attempts, oldest first."""

    results: list[AttemptOut]
    next_cursor: None


class JobViewSet(JobTelemetry, JobMetrics, JobExplanations, JobSharingActions):
    collection = "jobs"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {
        "list": Op(takes=(*_FILTERS, *PAGE), answer=ListedJobOut, pages=True),
        "create": Op(
            takes=(IDEMPOTENCY_KEY,),
            body=_SPEC,
            answer=AcceptedJobOut,
            status=201,
            also={200: AcceptedJobOut},
            holds_one_job=True,
        ),
        "plan": Op(body=_SPEC, answer=JobPlanOut, holds_one_job=True),
        "bulk": Op(body={"type": "array", "items": _SPEC}, answer=AcceptedJobsOut, status=201),
        "retrieve": Op(answer=JobDetailOut),
        "why": Op(answer=WhyOut),
        "events": Op(takes=PAGE, answer=EventOut, pages=True),
        "attempts": Op(answer=AttemptsOut),
        **TELEMETRY,
        **METRICS,
        **EXPLANATIONS,
        **SHARING,
        "stop": Op(body=StopIn, answer=JobOut),
        "clone": Op(
            takes=(IDEMPOTENCY_KEY,),
            answer=AcceptedJobOut,
            status=201,
            also={200: AcceptedJobOut},
        ),
        "release": Op(answer=JobOut),
        "hold": Op(answer=JobOut),
    }

    def list(self, request: Request) -> Response:
        """List jobs, newest first, or in the order that `order` names."""
        found = page_in_order(
            self.viewer,
            self._filters(),
            job_order(self.query.text("order")),
            now=database_now(),
            cursor=self.query.cursor(),
            limit=self.query.limit(),
        )
        nodes = nodes_of_jobs(found.results)
        return self.page(found, lambda row: listed_job_out(row, nodes.get(row.id, ())))

    def create(self, request: Request) -> Response:
        """Submit a job: a native specification, or an OpenPAI job (`protocolVersion: 2`).

        A repeated `Idempotency-Key` returns the first job with 200.
        """
        job, is_new = submit_job(
            submission=submission_from(request),
            viewer=self.viewer,
            submit_context=submit_context_for(self.viewer),
            now=database_now(),
            idempotency_key=request.headers.get("Idempotency-Key", ""),
        )
        return self._accepted(job, is_new=is_new)

    @action(detail=False, methods=["post"])
    def plan(self, request: Request) -> Response:
        """Plan a job: whether, where and when it would start, and its grids. Submits nothing."""
        submission = submission_from(request)
        submit_context = submit_context_for(self.viewer)
        plan = plan_job(
            document=submission.document,
            viewer=self.viewer,
            submit_context=submit_context,
            config=round_config(),
            now=database_now(),
            warnings=submission.warnings,
        )
        grids = grids_of_document(self.viewer, submission.document, submit_context)
        shown = draft_grids_out(grids) if grids is not None else None
        return Response(JobPlanOut(**plan_out(plan), grids=shown))

    @action(detail=False, methods=["post"])
    def bulk(self, request: Request) -> Response:
        """Submit up to 1,000 jobs, all or none."""
        if "Idempotency-Key" in request.headers:
            raise InvalidError(
                "A list of jobs cannot have an idempotency key.",
                field="Idempotency-Key",
                value=request.headers["Idempotency-Key"],
                remedy="Leave it out, or submit the jobs one by one.",
            )
        jobs = submit_jobs(
            submissions=submissions_from(request),
            viewer=self.viewer,
            submit_context=submit_context_for(self.viewer),
            now=database_now(),
        )
        rows = rows_of_new_jobs(self.viewer, jobs)
        parts = parts_among(jobs)
        results = [accepted_job_out(rows[job.pk], job.warnings, parts[job.pk]) for job in jobs]
        return Response({"results": results}, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a job with its specification and placement."""
        found = job_detail(self.viewer, pk)
        return versioned(job_detail_out(found), found.version)

    @action(detail=True, methods=["get"])
    def why(self, request: Request, pk: int) -> Response:
        """Explain why a job waits, with remedies."""
        now = database_now()
        answer = why(self.viewer, pk, now=now, round_seconds=settings.TESSERA.round_seconds)
        return Response(why_out(answer, now))

    @action(detail=True, methods=["get"])
    def events(self, request: Request, pk: int) -> Response:
        """List the events of a job, oldest first."""
        found = events_of_job(
            self.viewer, pk, cursor=self.query.cursor(), limit=self.query.limit()
        )
        return self.page(found, event_out)

    @action(detail=True, methods=["get"])
    def attempts(self, request: Request, pk: int) -> Response:
        """List the attempts of a job with their ranks, oldest first."""
        results = [attempt_out(attempt) for attempt in attempts_of_job(self.viewer, pk)]
        return Response({"results": results, "next_cursor": None})

    @action(detail=True, methods=["post"])
    def stop(self, request: Request, pk: int) -> Response:
        """Stop a job: immediately if it is queued, after its grace period if it is running."""
        wanted = read_body(StopIn, request.data)
        job = visible_job(self.viewer, pk)
        stop_job(job=job, viewer=self.viewer, now=database_now(), message=wanted.message[:1000])
        return self._row(pk)

    @action(detail=True, methods=["post"])
    def clone(self, request: Request, pk: int) -> Response:
        """Submit a copy of a job; secrets are not copied.

        A repeated `Idempotency-Key` returns the first copy with 200.
        """
        read_body(Nothing, request.data)
        job, is_new = clone_job(
            job=visible_job(self.viewer, pk),
            viewer=self.viewer,
            submit_context=submit_context_for(self.viewer),
            now=database_now(),
            idempotency_key=request.headers.get("Idempotency-Key", ""),
        )
        return self._accepted(job, is_new=is_new)

    @action(detail=True, methods=["post"])
    def release(self, request: Request, pk: int) -> Response:
        """Release a held job."""
        read_body(Nothing, request.data)
        release_hold(job=visible_job(self.viewer, pk), viewer=self.viewer)
        return self._row(pk)

    @action(detail=True, methods=["post"])
    def hold(self, request: Request, pk: int) -> Response:
        """Hold a queued job until it is released."""
        read_body(Nothing, request.data)
        hold_job(job=visible_job(self.viewer, pk), viewer=self.viewer)
        return self._row(pk)

    def _row(self, job_id: int) -> Response:
        return Response(job_out(rows_of_jobs(self.viewer, [job_id])[job_id]))

    def _accepted(self, job: Job, *, is_new: bool) -> Response:
        viewer = self.viewer
        rows = rows_of_new_jobs(viewer, [job]) if is_new else rows_of_jobs(viewer, [job.pk])
        headers = {"Location": f"/api/v1/jobs/{job.pk}/"}
        body = accepted_job_out(rows[job.pk], job.warnings, parts_of_job(viewer, job))
        return Response(body, status=201 if is_new else 200, headers=headers)

    def _filters(self) -> JobFilter:
        return JobFilter(
            states=self.query.many("state"),
            virtual_cluster=self.query.text("virtual_cluster"),
            tenant=self.query.text("tenant"),
            user=self.query.text("user"),
            reason=self.query.text("reason"),
            text=self._search(),
            mine=self.query.flag("mine"),
            ended_since=self.query.moment("ended_since"),
            submitted_until=self.query.moment("submitted_until"),
        )

    def _search(self) -> str:
        label, words = self.query.text("label"), self.query.text("q")
        if label and words:
            raise _wrong("label", label, "label and q cannot be combined.", "Use one of them.")
        if label and "=" not in label:
            raise _wrong("label", label, "This is not a valid label.", "Write name=value.")
        if len(label or words) > LONGEST_SEARCH:
            message = f"A search has at most {LONGEST_SEARCH} characters."
            raise _wrong(
                "label" if label else "q", label or words, message, "Use a shorter search text."
            )
        return label or words


def _wrong(field: str, value: str, message: str, remedy: str) -> InvalidError:
    return InvalidError(message, field=field, value=value, remedy=remedy)
