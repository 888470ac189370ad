"""Actions on jobs: one from its page, several from the list, each with its own result."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Final
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.addresses import job_url
from portal.api.documents import submit_context_for
from portal.i18n import gettext_lazy, translated
from portal.web.forms import once_of
from portal.web.viewing import PageRequest, page
from scheduling.common.paging import MOST_ROWS
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import visible_job
from scheduling.jobs.services.amendments import hold_job, release_hold
from scheduling.jobs.services.ownership import note_log_read
from scheduling.jobs.services.submission import clone_job
from scheduling.jobs.validation import InvalidJobError
from scheduling.runs.services import guests
from scheduling.runs.services.stopping import stop_job
from tenants.errors import DomainError, ForbiddenError, InvalidError
from workers.conf import worker_settings
from workers.job_logs import read_log

LONGEST_REASON = 500
CHUNK_BYTES = 1 << 20
COMPARE: Final = "compare"
TITLES: Final = {
    "stop": gettext_lazy("Stop"),
    "hold": gettext_lazy("Hold"),
    "release": gettext_lazy("Release"),
    "clone": gettext_lazy("Clone"),
}


@require_POST
@page
def stop(request: PageRequest, job_id: int) -> HttpResponse:
    stop_and_report(request, job_id)
    return _to_job(job_id)


@require_POST
@page
def stop_sharing(request: PageRequest, job_id: int) -> HttpResponse:
    """Order the guests of a job to leave its devices."""
    job = visible_job(request.viewer, job_id)
    try:
        guests.stop_sharing(job=job, viewer=request.viewer, now=request.now)
    except DomainError as error:
        _refuse(request, error)
    else:
        messages.success(request.http, gettext("Device sharing stopped. Guests leave within 5 s."))
    return _to_job(job_id)


@require_POST
@page
def clone(request: PageRequest, job_id: int) -> HttpResponse:
    """Submit the same specification again."""
    job = visible_job(request.viewer, job_id)
    submit_context = submit_context_for(request.viewer)
    try:
        once = once_of(request.http.POST)
        copy, _ = clone_job(
            job=job,
            viewer=request.viewer,
            submit_context=submit_context,
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
    """Stream the log of one rank as a file."""
    storage = worker_settings().storage
    read = partial(
        read_log,
        request.viewer,
        job_id,
        storage=storage,
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


def stop_and_report(request: PageRequest, job_id: int) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """The result for one job; ``tone`` is ok, bad, or empty for nothing to do."""

    job: str
    name: str
    url: str
    summary: str
    tone: str


@require_POST
@page
def stop_one(request: PageRequest) -> HttpResponse:
    """Stop the job of one row of the list, and show the list again."""
    form = request.http.POST
    stop_and_report(request, _number(form.get("only", "")))
    return HttpResponseRedirect(_back(form.get("next", "")))


@require_POST
@page
def act_on_many(request: PageRequest) -> HttpResponse:
    """Apply one action to all selected jobs, and report the result of each."""
    form = request.http.POST
    act = form.get("act", "")
    if act == COMPARE:
        jobs = ",".join(each for each in form.getlist("selected")[:MOST_ROWS])
        return HttpResponseRedirect(f"{reverse('jobs-compare')}?{urlencode({'jobs': jobs})}")
    if act not in TITLES:
        raise InvalidError(
            _("Unknown action."),
            field="act",
            value=act[:40],
            remedy=_("Use one of: %(TITLES)s.") % {"TITLES": ", ".join(TITLES)},
        )
    picked = form.getlist("selected")[:MOST_ROWS]
    back = _back(form.get("next", ""))
    if not picked:
        return HttpResponseRedirect(back)
    do = _acts(request, form.get("reason", "")[:LONGEST_REASON])[act]
    results = [_result(request, word, do) for word in picked]
    context = {
        "title": TITLES[act],
        "results": results,
        "done": sum(result.tone == "ok" for result in results),
        "refused": sum(result.tone == "bad" for result in results),
        "back": back,
    }
    return request.render("jobs/acted.html", context)


def _acts(request: PageRequest, reason: str) -> dict[str, Callable[[Job], str]]:
    """Return the actions on a job; each returns its result, empty for none."""
    viewer, now = request.viewer, request.now
    once = once_of(request.http.POST)

    def stop(job: Job) -> str:
        before = job.state
        after = stop_job(job=job, viewer=viewer, now=now, message=reason)
        return (
            ""
            if after == before
            else (_("stopped") if after == "stopped" else _("stop requested"))
        )

    def hold(job: Job) -> str:
        return _("on hold") if hold_job(job=job, viewer=viewer) else ""

    def release(job: Job) -> str:
        return _("released") if release_hold(job=job, viewer=viewer) else ""

    def clone(job: Job) -> str:
        key = f"{once}:{job.pk}" if once else ""
        copy, is_new = clone_job(
            job=job, viewer=viewer, submit_context=submit_context(), now=now, idempotency_key=key
        )
        return _("cloned as job %(pk)s") % {"pk": copy.pk} if is_new else ""

    # Read once, and only if a job is cloned.
    submit_context = cache(partial(submit_context_for, viewer))
    return {"stop": stop, "hold": hold, "release": release, "clone": clone}


def _result(request: PageRequest, word: str, do: Callable[[Job], str]) -> ActionResult:
    name, url = "", ""
    try:
        job = visible_job(request.viewer, _number(word))
        name, url = job.name, job_url(job.pk)
        done = do(job)
    except DomainError as error:
        summary, tone = error.message, "bad"
    else:
        summary, tone = (done, "ok") if done else (_("no change needed"), "")
    return ActionResult(job=word[:19], name=name, url=url, summary=summary, tone=tone)


def _number(word: str) -> int:
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 19 else 0


def _back(wanted: str) -> str:
    is_ours = url_has_allowed_host_and_scheme(wanted, allowed_hosts=None) and wanted[:1] == "/"
    return wanted if is_ours else reverse("jobs")
