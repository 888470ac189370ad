"""The pages of one job: overview, logs, attempts, events, specification, and calls."""

import json
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from portal.web.job_calls import calls_for, first_rank
from portal.web.job_context import head_context, overview_context, streams
from portal.web.job_goodput import goodput_figure, goodput_in_words
from portal.web.job_history import marks_of
from portal.web.job_text import to_yaml
from portal.web.submit_templates import json_object
from portal.web.viewing import PageRequest, page
from scheduling.jobs.models import Job
from scheduling.jobs.queries.events import JobLife, events_of_job, life_of_job
from scheduling.jobs.queries.jobs import JobRow, visible_job
from workers.curves import CurvePoint, goodput_curve


@require_safe
@page
def overview(request: PageRequest, job_id: int) -> HttpResponse:
    """History, goodput, ranks, log, placement and facts; or its parts for a swap."""
    context = head_context(request, job_id, "job")
    context |= overview_context(request, context["detail"])
    # An existing chart fetches its own figure; a swap renders the first one only.
    if not request.wants_part or request.http.GET.get("curve"):
        samples, row = goodput_curve(request.viewer, job_id), context["job"]
        context |= {
            "figure": _figure(request, samples, context["life"], row),
            "figure_says": goodput_in_words(samples),
        }
    if request.wants_part:
        # The charts of devices fetch themselves; a swap renders their container if they are
        # missing.
        wanted = bool(request.http.GET.get("devices"))
        context["brings_devices"] = wanted and context["has_devices"]
        return request.render("job/_overview_parts.html", context)
    return request.render("job/overview.html", context)


@require_safe
@page
def logs(request: PageRequest, job_id: int) -> HttpResponse:
    """The log of one rank at full height."""
    context = head_context(request, job_id, "job-logs")
    if request.wants_part:
        return request.render("job/_head_parts.html", context)
    role, rank = first_rank(context["detail"])
    context |= {"role": role, "rank": rank, "streams": streams(context["detail"])}
    return request.render("job/logs.html", context)


@require_safe
@page
def attempts(request: PageRequest, job_id: int) -> HttpResponse:
    """Every attempt with its members, the newest first."""
    context = head_context(request, job_id, "job-attempts")
    context["attempts"] = tuple(reversed(context["detail"].attempts))
    part = "job/_attempts_parts.html"
    return request.render(part if request.wants_part else "job/attempts.html", context)


@require_safe
@page
def events(request: PageRequest, job_id: int) -> HttpResponse:
    """Show the events, the newest first."""
    context = head_context(request, job_id, "job-events")
    cursor = request.http.GET.get("cursor")
    found = events_of_job(request.viewer, job_id, cursor=cursor, newest_first=True)
    context |= {"events": found.results, "next_cursor": found.next_cursor or ""}
    part = "job/_events_parts.html"
    return request.render(part if request.wants_part else "job/events.html", context)


@require_safe
@page
def spec(request: PageRequest, job_id: int) -> HttpResponse:
    """Show the document as submitted, and the specification in force."""
    context = head_context(request, job_id, "job-spec")
    if request.wants_part:
        return request.render("job/_head_parts.html", context)
    detail = context["detail"]
    sent = json_object(detail.source_text)
    context |= {
        "is_json": sent is not None,
        "sent": json.dumps(sent, indent=2, ensure_ascii=False)
        if sent is not None
        else detail.source_text or to_yaml(detail.spec),
        "effective": to_yaml(detail.effective),
    }
    return request.render("job/spec.html", context)


@require_safe
@page
def calls(request: PageRequest, job_id: int) -> HttpResponse:
    """Show the same as REST and CLI calls."""
    context = head_context(request, job_id, "job-calls")
    if request.wants_part:
        return request.render("job/_head_parts.html", context)
    context["calls"] = calls_for(context["detail"], request.portal_url)
    return request.render("job/calls.html", context)


@require_safe
@page
def goodput(request: PageRequest, job_id: int) -> JsonResponse:
    """The figure of the goodput chart."""
    job = visible_job(request.viewer, job_id)
    samples = goodput_curve(request.viewer, job_id)
    figure = _figure(request, samples, life_of_job(request.viewer, job_id), job)
    return JsonResponse(figure, headers={"Cache-Control": "private, no-store"})


def _figure(
    request: PageRequest, samples: tuple[CurvePoint, ...], life: JobLife, job: Job | JobRow
) -> dict[str, Any]:
    return goodput_figure(
        samples,
        start=job.submitted_at,
        end=job.finished_at or request.now,
        marks=marks_of(life),
        checkpoints=life.checkpoints,
    )
