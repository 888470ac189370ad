"""The pages of one job, and the parts that they fetch: devices, and search in a log."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from portal.i18n import gettext_lazy
from portal.web.api_calls import calls_for, first_rank
from portal.web.components.devicecharts import device_rows
from portal.web.job_context import head_context, marks_of, overview_context, streams
from portal.web.job_documents import json_object, to_yaml
from portal.web.job_metrics import metrics_context
from portal.web.job_progress import progress_of
from portal.web.job_training import goodput_figure, goodput_in_words
from portal.web.viewing import PageRequest, page
from scheduling.core.jobspec import ElasticMode
from scheduling.core.lifecycle import TERMINAL, JobState
from scheduling.jobs.models import CHECKPOINT, Job
from scheduling.jobs.queries.events import JobLife, events_of_job, life_of_job
from scheduling.jobs.queries.job_detail import JobDetail
from scheduling.jobs.queries.jobs import JobRow, visible_job
from scheduling.jobs.services.ownership import note_log_read
from scheduling.parallelism.queries import profiled_paces
from tenants.errors import InvalidError
from workers.conf import worker_settings
from workers.device_curves import USUAL_RANKS, device_curves
from workers.goodput import CurvePoint, goodput_curve
from workers.job_logs import search_log
from workers.metrics import metrics_of_job, total_steps_of, tracked_runs_of
from workers.services.logs import MOST_HITS, LogHit

MOST_RANK: Final = 100_000
STOP_POLLING: Final = 286
"""htmx swaps a response with this status and ends the timer of the element that requested it."""
SPANS: Final = {
    60: gettext_lazy("a minute"),
    600: gettext_lazy("ten minutes"),
    3600: gettext_lazy("an hour"),
}
MOST_STRETCHES: Final = 4
"""Maximum number of 1 MiB pieces read for one request; the page requests further pieces itself."""


@require_safe
@page
def overview(request: PageRequest, job_id: int) -> HttpResponse:
    """Show history, goodput, ranks, log, placement and facts; or its parts for a swap."""
    context = head_context(request, job_id, "job")
    context |= overview_context(request, context["detail"])
    # An existing chart fetches its own figure; a swap renders the first one only.
    wants_curve = not request.wants_part or bool(request.http.GET.get("curve"))
    total = total_steps_of(job_id) or _elastic_steps(context["detail"])
    samples = goodput_curve(request.viewer, job_id) if wants_curve or total else ()
    found = metrics_of_job(request.viewer, job_id)
    context["tracked_runs"] = tracked_runs_of(job_id) if found else ()
    context["progress"] = progress_of(
        request,
        context["detail"],
        samples or context["newest_points"],
        total_steps=total,
        log_step=found[0].last_step if found else None,
    )
    if not request.wants_part or request.http.GET.get("metrics"):
        context |= metrics_context(request, job_id, found, context["life"])
    if wants_curve:
        row = context["job"]
        context |= {
            "figure": _figure(request, samples, context["life"], row, spec=context["detail"].spec),
            "figure_says": goodput_in_words(samples),
        }
    if request.wants_part:
        # The charts of devices fetch themselves; a swap renders their container if they are
        # missing.
        wanted = bool(request.http.GET.get("devices"))
        context["brings_devices"] = wanted and context["has_devices"]
        status = STOP_POLLING if context["job"].is_over else HTTPStatus.OK
        return request.render("job/_overview_parts.html", context, status=status)
    return request.render("job/overview.html", context)


@require_safe
@page
def logs(request: PageRequest, job_id: int) -> HttpResponse:
    """Show the log of one rank at full height."""
    context = head_context(request, job_id, "job-logs")
    if request.wants_part:
        return request.render("job/_head_parts.html", context)
    role, rank = first_rank(context["detail"])
    context |= {"role": role, "rank": rank, "streams": streams(context["detail"])}
    return request.render("job/logs.html", context)


@require_safe
@page
def attempts(request: PageRequest, job_id: int) -> HttpResponse:
    """Show every attempt with its members, the newest first."""
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
    hides = request.http.GET.get("checkpoints") == "hide"
    found = events_of_job(
        request.viewer,
        job_id,
        cursor=cursor,
        newest_first=True,
        without=(CHECKPOINT,) if hides else (),
    )
    context |= {
        "events": found.results,
        "next_cursor": found.next_cursor or "",
        "hides_checkpoints": hides,
    }
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
    """Show the REST and CLI calls for this job."""
    context = head_context(request, job_id, "job-calls")
    if request.wants_part:
        return request.render("job/_head_parts.html", context)
    context["calls"] = calls_for(context["detail"], request.portal_url)
    return request.render("job/calls.html", context)


@require_safe
@page
def goodput(request: PageRequest, job_id: int) -> JsonResponse:
    """Build the figure of the goodput chart."""
    job = visible_job(request.viewer, job_id)
    samples = goodput_curve(request.viewer, job_id)
    figure = _figure(request, samples, life_of_job(request.viewer, job_id), job, spec=job.spec)
    return JsonResponse(figure, headers={"Cache-Control": "private, no-store"})


def _elastic_steps(detail: JobDetail) -> int | None:
    steps = (detail.spec.get("elastic") or {}).get("total_steps")
    return steps if isinstance(steps, int) else None


def _figure(
    request: PageRequest,
    samples: tuple[CurvePoint, ...],
    life: JobLife,
    job: Job | JobRow,
    *,
    spec: Mapping[str, Any],
) -> dict[str, Any]:
    has_batches = (spec.get("elastic") or {}).get("mode") == ElasticMode.ADAPTIVE_BATCH
    return goodput_figure(
        samples,
        start=job.submitted_at,
        end=job.finished_at or request.now,
        marks=marks_of(life),
        checkpoints=life.checkpoints,
        profiles=profiled_paces(request.viewer, job.id) if has_batches else (),
    )


@require_safe
@page
def devices(request: PageRequest, job_id: int) -> HttpResponse:
    """Load and memory of the devices of some ranks, over the job's life."""
    job = visible_job(request.viewer, job_id)
    asked = request.http.GET.get("first", "")
    first = min(int(asked), MOST_RANK) if asked.isascii() and asked.isdecimal() else 0
    curves = device_curves(request.viewer, job.pk, now=request.now, first=first)
    rows = device_rows(curves)
    last = first + len(curves.ranks)
    is_measured = any(row.device.points for row in rows)
    context = {
        "job_id": job.pk,
        "curves": curves,
        "rows": rows,
        "is_over": JobState(job.state) in TERMINAL,
        "is_measured": is_measured,
        # Some ranks may have no data, and others much data.
        "is_table": is_measured or bool(first) or last < curves.total,
        "has_slots": any(not row.device.is_gpu for row in rows),
        "span": SPANS[curves.span_seconds],
        "first": first,
        "from_rank": first + 1,
        "to_rank": last,
        "previous": max(0, first - USUAL_RANKS) if first else None,
        "more": max(0, curves.total - last),
    }
    return request.render("job/_devices.html", context)


@require_safe
@page
def search(request: PageRequest, job_id: int) -> HttpResponse:
    """Return matching lines, and the end of the searched range."""
    query = request.http.GET
    role, _, rank = query.get("stream", "").rpartition(":")
    offset = begun = _number(query.get("offset", "0"))
    hits: list[LogHit] = []
    for _ in range(MOST_STRETCHES):
        piece, found = search_log(
            request.viewer,
            job_id,
            wanted=query.get("q", ""),
            storage=worker_settings().storage,
            role=role,
            rank=_number(rank or "0"),
            offset=offset,
        )
        hits += found
        has_more = not piece.end and piece.next_offset > offset
        offset = piece.next_offset
        if not has_more or len(hits) >= MOST_HITS:
            break
    note_log_read(viewer=request.viewer, job_id=job_id)
    context = {
        "job_id": job_id,
        "hits": hits,
        "more": {"q": query.get("q", ""), "stream": query.get("stream", ""), "offset": offset}
        if has_more
        else None,
        "looked": offset,
        "size": piece.size,
        "is_first": begun == 0,
    }
    return request.render("job/_log_hits.html", context)


def _number(given: str) -> int:
    if given.isascii() and given.isdecimal() and len(given) < 16:
        return int(given)
    raise InvalidError("This is not a valid number.", field="offset", value=given[:40])
