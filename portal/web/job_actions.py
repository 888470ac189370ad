"""Actions on a job's page: stop, clone, release, and download of a log."""

from collections.abc import AsyncIterator
from functools import partial

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from portal.api.documents import ground_for
from portal.i18n import translated
from portal.web.form_tokens import once_of
from portal.web.viewing import PageRequest, page
from scheduling.jobs.queries.jobs import visible_job
from scheduling.jobs.services.amendments import release_hold
from scheduling.jobs.services.ownership import note_log_read
from scheduling.jobs.services.submission import clone_job
from scheduling.jobs.validation import InvalidJobError
from scheduling.runs.services.stopping import stop_job
from tenants.errors import DomainError, ForbiddenError
from workers.conf import worker_settings
from workers.selectors import read_log

LONGEST_REASON = 500
CHUNK_BYTES = 1 << 20


@require_POST
@page
def stop(request: PageRequest, job_id: int) -> HttpResponse:
    stop_and_say(request, job_id)
    return _to_job(job_id)


@require_POST
@page
def clone(request: PageRequest, job_id: int) -> HttpResponse:
    """Submit the same specification again."""
    job = visible_job(request.viewer, job_id)
    ground = ground_for(request.viewer)
    try:
        once = once_of(request.http.POST)
        copy, _ = clone_job(
            job=job,
            viewer=request.viewer,
            ground=ground,
            now=request.now,
            idempotency_key=f"{once}:{job.pk}" if once else "",
        )
    except InvalidJobError as error:
        _refuse(request, error)
        return HttpResponseRedirect(f"{reverse('submit')}?clone={job.pk}")
    messages.success(
        request.http, gettext("Job %(pk)s is a clone of %(pk2)s.") % {"pk": copy.pk, "pk2": job.pk}
    )
    for warning in copy.warnings:
        messages.warning(request.http, translated(warning))
    return _to_job(copy.pk)


@require_POST
@page
def release(request: PageRequest, job_id: int) -> HttpResponse:
    """Release a held job."""
    job = visible_job(request.viewer, job_id)
    freed = release_hold(job=job, viewer=request.viewer)
    words = (
        gettext("Job %(pk)s released.") % {"pk": job.pk}
        if freed
        else gettext("Job %(pk)s is not on hold.") % {"pk": job.pk}
    )
    messages.success(request.http, words)
    return _to_job(job.pk)


@require_safe
@page
def download_log(request: PageRequest, job_id: int, role: str, rank: int) -> StreamingHttpResponse:
    """The log of one rank as a file."""
    logs_dir = worker_settings().logs_dir
    read = partial(
        read_log,
        request.viewer,
        job_id,
        logs_dir=logs_dir,
        role=role,
        rank=rank,
        limit=CHUNK_BYTES,
    )
    first = read(offset=0)
    note_log_read(viewer=request.viewer, job_id=job_id)

    async def pieces() -> AsyncIterator[bytes]:
        part = first
        while part.text:
            yield part.text.encode()
            part = await sync_to_async(read)(offset=part.next_offset, attempt=part.attempt)

    return StreamingHttpResponse(
        pieces(),
        content_type="text/plain; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="job-{job_id}-{role}-{rank}.log"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "private, no-store",
        },
    )


def stop_and_say(request: PageRequest, job_id: int) -> None:
    """Stop a job, and show the result on the next page."""
    job = visible_job(request.viewer, job_id)
    before = job.state
    message = request.http.POST.get("reason", "")[:LONGEST_REASON]
    after = stop_job(job=job, viewer=request.viewer, now=request.now, message=message)
    if after == before:
        messages.info(request.http, gettext("Job %(pk)s has already ended.") % {"pk": job.pk})
    else:
        done = gettext("stopped") if after == "stopped" else gettext("stop requested")
        messages.success(
            request.http, gettext("Job %(pk)s: %(done)s.") % {"pk": job.pk, "done": done}
        )


def _refuse(request: PageRequest, error: DomainError) -> None:
    if isinstance(error, ForbiddenError):
        raise error
    messages.error(
        request.http,
        gettext("Job not cloned: %(message)s") % {"message": translated(error.message)},
    )


def _to_job(job_id: int) -> HttpResponseRedirect:
    return HttpResponseRedirect(reverse("job", args=[job_id]))
