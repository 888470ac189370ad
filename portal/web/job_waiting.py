"""Actions on a waiting job: apply a remedy, and check the reason."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.api.documents import ground_for, round_config
from portal.i18n import translated
from portal.web.job_context import head_context
from portal.web.viewing import PageRequest, page
from scheduling.core.jobspec.amending import AmendError, amended
from scheduling.core.lifecycle import JobState
from scheduling.estimates.services.explanations import CheckedCertificate, checked_reason, seek_now
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import visible_job
from scheduling.jobs.services.amendments import amend_job
from tenants.errors import DomainError, InvalidError, NotFoundError, StaleEditError

MOST_BYTES = 16_384


@require_safe
@page
def unblock(request: PageRequest, job_id: int) -> HttpResponse:
    """Show remedies with which the job starts now, searched while the page is open."""
    job = visible_job(request.viewer, job_id)
    if job.state == JobState.QUEUED:
        seek_now(job=job, config=round_config(), now=request.now)
    context = head_context(request, job_id, "job")
    return request.render("job/_unblock.html", {**context, "was_sought": True})


@require_POST
@page
def amend(request: PageRequest, job_id: int) -> HttpResponse:
    """Apply one remedy: change the job in place, if unchanged since the page was rendered."""
    job = visible_job(request.viewer, job_id)
    changes = _changes(request.http.POST.get("changes", ""))
    try:
        done = amend_and_say(request, job, changes, seen=request.http.POST.get("seen", ""))
    except DomainError as error:
        if error.status in (403, 404):
            raise
        if isinstance(error, StaleEditError) and _is_so(request, job_id, changes):
            messages.success(request.http, _done(job))  # sent twice
        else:
            messages.error(
                request.http,
                _("Job not changed: %(message)s") % {"message": translated(error.message)},
            )
    else:
        messages.success(request.http, done)
    return HttpResponseRedirect(reverse("job", args=[job.pk]))


def amend_and_say(
    request: PageRequest, job: Job, changes: Mapping[str, Any], *, seen: str = ""
) -> str:
    """Change the job as the viewer, if unchanged since ``seen``; return the message."""
    amend_job(
        job=job,
        changes=changes,
        viewer=request.viewer,
        ground=ground_for(request.viewer),
        now=request.now,
        seen=seen,
    )
    return _done(job)


def _done(job: Job) -> str:
    return _("Job %(pk)s changed. The next scheduling round uses the new values.") % {"pk": job.pk}


def _is_so(request: PageRequest, job_id: int, changes: Mapping[str, Any]) -> bool:
    """Return whether the job already has the changed values."""
    spec = visible_job(request.viewer, job_id).spec
    try:
        return bool(amended(spec, changes) == spec)
    except AmendError:
        return False


@require_safe
@page
def evidence(request: PageRequest, job_id: int) -> HttpResponse:
    """The certificate of the reason, checked against the stored snapshot."""
    job = visible_job(request.viewer, job_id)
    context = head_context(request, job_id, "job-evidence")
    checked: CheckedCertificate | None
    try:
        checked = checked_reason(job=job, data_dir=Path(settings.TESSERA.data_dir))
    except NotFoundError:
        checked = None
    document = checked.certificate.to_json() if checked is not None else {}
    context |= {"checked": checked, "document": json.dumps(document, indent=2, ensure_ascii=False)}
    return request.render("job/evidence.html", context)


def _changes(text: str) -> dict[str, object]:
    try:
        found = json.loads(text[:MOST_BYTES])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidError(
            _("The changes are not valid."),
            field="changes",
            value=text[:100],
            remedy=_("Reload the page."),
        )
    return found
