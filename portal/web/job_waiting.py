"""Actions on a waiting job: apply a remedy, check the reason, edit limits and note."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.api.documents import round_config, submit_context_for
from portal.i18n import Name, gettext_lazy, translated
from portal.web.forms import put_faults, status_of
from portal.web.job_context import head_context
from portal.web.viewing import PageRequest, page
from portal.web.waiting_picture import MOST_NODES, candidate_nodes, jobs_on, waiting_picture
from scheduling.clusters.queries.cluster import node_views
from scheduling.clusters.queries.cluster_facts import cluster_facts
from scheduling.clusters.queries.import_rules import list_priority_classes
from scheduling.core.jobspec.amending import AmendError, amended, version_of
from scheduling.core.lifecycle import JobState
from scheduling.estimates.services.explanations import CheckedCertificate, checked_reason, seek_now
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import rows_of_jobs, visible_job
from scheduling.jobs.services.amendments import amend_job
from scheduling.jobs.services.ownership import require_own
from scheduling.storage.opening import open_storage
from tenants.errors import DomainError, InvalidError, NotFoundError, StaleEditError
from tenants.viewers import Viewer

MOST_BYTES = 16_384
FIELDS = ("priority", "max_duration", "note")


@require_safe
@page
def unblock(request: PageRequest, job_id: int) -> HttpResponse:
    """Show remedies with which the job starts now, searched while the page is open."""
    job = visible_job(request.viewer, job_id)
    if job.state == JobState.QUEUED:
        seek_now(job=job, config=round_config(), now=request.now)
    context = head_context(request, job_id, "job")
    return request.render("job/_unblock.html", {**context, "was_sought": True})


@require_safe
@page
def waiting(request: PageRequest, job_id: int) -> HttpResponse:
    """Draw the nodes that could hold a waiting job, and the jobs on them."""
    job = visible_job(request.viewer, job_id)
    if job.state != JobState.QUEUED:
        return HttpResponse()
    nodes = node_views(cluster_facts(), request.viewer)
    candidates = candidate_nodes(nodes, job.spec)
    on_them = jobs_on(candidates[:MOST_NODES])
    rows = rows_of_jobs(request.viewer, on_them) if on_them else {}
    picture = waiting_picture(candidates, job.spec, rows)
    return request.render("job/_waiting.html", {"picture": picture})


@require_POST
@page
def amend(request: PageRequest, job_id: int) -> HttpResponse:
    """Apply one remedy: change the job in place, if unchanged since the page was rendered."""
    job = visible_job(request.viewer, job_id)
    changes = _changes(request.http.POST.get("changes", ""))
    try:
        done = amend_and_report(request, job, changes, seen=request.http.POST.get("seen", ""))
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


def amend_and_report(
    request: PageRequest, job: Job, changes: Mapping[str, Any], *, seen: str = ""
) -> str:
    """Change the job as the viewer, if unchanged since ``seen``; return the message."""
    amend_job(
        job=job,
        changes=changes,
        viewer=request.viewer,
        submit_context=submit_context_for(request.viewer),
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
    """Show the certificate of the reason, checked against the stored snapshot."""
    job = visible_job(request.viewer, job_id)
    context = head_context(request, job_id, "job-evidence")
    checked: CheckedCertificate | None
    try:
        checked = checked_reason(job=job, storage=open_storage(settings.TESSERA.storage))
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


class _LinesField(forms.CharField):
    """A multi-line text; normalises the line ends of browsers to one character."""

    def to_python(self, value: Any) -> str:
        return str(super().to_python(value)).replace("\r\n", "\n")


class JobEditForm(forms.Form):
    """Editable fields of a waiting job; an empty value removes a field."""

    priority = forms.ChoiceField(label=gettext_lazy("Priority"), required=False)
    max_duration = forms.CharField(
        label=gettext_lazy("Time limit"),
        required=False,
        max_length=40,
        help_text=gettext_lazy("Seconds, or 90m, 2h, 1d12h. Leave empty for no limit."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    note = _LinesField(
        label=gettext_lazy("Note"),
        required=False,
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    seen = forms.CharField(widget=forms.HiddenInput, required=False, max_length=64)

    def __init__(self, *args: Any, viewer: Viewer, spec: Mapping[str, Any], **more: Any) -> None:
        super().__init__(*args, **more)
        self.fields["priority"].choices = _priorities(viewer, spec)  # type: ignore[attr-defined]
        if spec.get("class") == "opportunistic":
            del self.fields["priority"]

    @classmethod
    def of(cls, job: Job, viewer: Viewer) -> "JobEditForm":
        """Build the form with the current values of the job."""
        return cls(initial=_values(job), viewer=viewer, spec=job.spec)

    def changes(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the differences from the job, by path; None removes a field."""
        given = {name: self.cleaned_data[name].strip() for name in FIELDS if name in self.fields}
        return {
            name: _typed(name, value) if value else None
            for name, value in given.items()
            if value != before[name]
        }


@require_http_methods(["GET", "HEAD", "POST"])
@page
def edit(request: PageRequest, job_id: int) -> HttpResponse:
    """Show the form, or the result of its submit."""
    job = visible_job(request.viewer, job_id)
    require_own(job=job, viewer=request.viewer)
    if request.http.method != "POST":
        return _form(request, job, JobEditForm.of(job, request.viewer))
    form = JobEditForm(request.http.POST, viewer=request.viewer, spec=job.spec)
    if not form.is_valid():
        return _form(request, job, form)
    try:
        done = _change(request, job, form)
    except StaleEditError:
        return _form(request, job, JobEditForm.of(job, request.viewer), theirs=_sent(form))
    except DomainError as error:
        if error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            raise
        put_faults(form, error)
        return _form(request, job, form)
    messages.success(request.http, done)
    if request.wants_part:
        return HttpResponse(status=HTTPStatus.NO_CONTENT, headers={"HX-Redirect": _page_of(job)})
    return HttpResponseRedirect(_page_of(job))


def _change(request: PageRequest, job: Job, form: JobEditForm) -> str:
    changes = form.changes(_values(job))
    seen = form.cleaned_data["seen"]
    if not changes:
        return _("Job %(pk)s not changed: the values are the same.") % {"pk": job.pk}
    # The second of two identical requests finds the change done, and has no effect.
    return amend_and_report(request, job, changes, seen=seen)


def _form(
    request: PageRequest, job: Job, form: JobEditForm, *, theirs: Mapping[str, str] | None = None
) -> HttpResponse:
    waits = job.state == JobState.QUEUED
    faulty = [name for name in form.fields if name in form.errors] or list(form.fields)
    form.fields[faulty[0]].widget.attrs["autofocus"] = True
    context: dict[str, Any] = {
        "form": form,
        "job_id": job.pk,
        "waits": waits,
        "lost": tuple((form.fields[name].label, value) for name, value in (theirs or {}).items()),
        "was_stale": theirs is not None,
    }
    if request.wants_part:
        return request.render("job/_edit_form.html", context, status=status_of(form))
    context |= head_context(request, job.pk, "job-edit")
    return request.render("job/edit.html", context, status=status_of(form))


def _sent(form: JobEditForm) -> Mapping[str, str]:
    return {name: form.cleaned_data[name] for name in FIELDS if name in form.fields}


def _values(job: Job) -> dict[str, str]:
    """Return the fields as form texts."""
    spec = job.spec
    limit = spec.get("max_duration")
    priority = spec.get("priority")
    return {
        "priority": "" if priority is None else str(priority),
        "max_duration": "" if limit is None else _duration_text(int(limit)),
        "note": spec.get("note") or "",
        "seen": version_of(spec),
    }


def _duration_text(seconds: int) -> str:
    """Format ``1d12h`` as in a specification, without loss."""
    found = ""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        found += f"{count}{unit}" if count else ""
    return found


def _typed(name: str, text: str) -> str | int:
    is_number = name != "note" and text.isascii() and text.isdecimal()
    return int(text) if is_number else text


def _priorities(viewer: Viewer, spec: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rows = [row for row in list_priority_classes(viewer) if row.value >= 0]
    usual = next(
        (
            _("default (%(name)s, %(value)s)") % {"name": row.name, "value": row.value}
            for row in rows
            if row.is_default
        ),
        "",
    )
    found: list[tuple[str, Any]] = [("", usual or _("default"))]
    found += [(row.name, Name(f"{row.name} ({row.value})")) for row in rows]
    now = spec.get("priority")
    if now is not None and str(now) not in dict(found):
        found.append((str(now), Name(str(now))))
    return found


def _page_of(job: Job) -> str:
    return reverse("job", args=[job.pk])
