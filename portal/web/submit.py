"""Submitting a job: a form synchronised with its YAML, the preview, and the submit."""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from portal.api.documents import (
    round_config,
    submission_of,
    submission_of_import,
    submit_context_for,
)
from portal.api.imports import import_context, submit_import
from portal.i18n import translated
from portal.web import submit_check, submit_fields
from portal.web.api_calls import submit_calls
from portal.web.job_documents import SAMPLES, sample_text, text_of_job, tidy, to_yaml
from portal.web.submit_check import SubmitCheck, check, faults_in_words
from portal.web.submit_form import form_of, pins_offered
from portal.web.submit_panel import Panel, panel_of
from portal.web.submit_text import (
    Typed,
    read_typed,
    with_changes,
    with_role,
    with_upload,
    without_role,
)
from portal.web.viewing import PageRequest, page
from scheduling.clusters.models import VirtualCluster
from scheduling.clusters.queries.names import (
    device_type_names,
    idlest_virtual_cluster,
    last_virtual_cluster,
)
from scheduling.compat.formats import TITLES
from scheduling.estimates.services.submit_plans import JobPlan, plan_job
from scheduling.jobs.models import Job
from scheduling.jobs.queries.job_detail import job_detail
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.archives import MOST_BYTES
from scheduling.jobs.services.idempotency import IdempotencyConflictError, Key, jobs_of_key
from scheduling.jobs.services.saved import template_for, templates_of
from scheduling.jobs.services.submission import submit_job
from scheduling.parallelism.drafts import DraftGrids, grids_of_draft
from scheduling.topology.current import current_topology
from tenants.errors import DomainError, FieldError, InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

MOST_TEMPLATES: Final = 20
FORM: Final = "form"
YAML: Final = "yaml"
MOST_TEXT: Final = 512 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """The posted page: the text with the changes of the form.

    Attributes:
        had_roles: the roles whose fields the page showed.
        change: ``add-role``, ``remove-role:NAME``, ``add-secret:ROLE``,
            ``remove-secret:ROLE:NAME``, ``translate``, ``check``, ``upload`` or empty.
        faults: faults of an upload.
    """

    typed: Typed
    had_roles: tuple[str, ...]
    change: str
    faults: tuple[FieldError, ...]


@require_http_methods(["GET", "HEAD", "POST"])
@page
def submit(request: PageRequest) -> HttpResponse:
    """Show the page; a POST submits the job, or shows its faults."""
    submit_context = submit_context_for(request.viewer)
    if request.http.method != "POST":
        typed, notes = _beginning(request, submit_context)
        checked = check(typed, viewer=request.viewer, submit_context=submit_context)
        return _page(request, checked, submit_context, notes=notes)
    posted = _posted(request, submit_context, is_sent=True)
    checked = check(
        posted.typed, viewer=request.viewer, submit_context=submit_context, also=posted.faults
    )
    if posted.change:
        plan = _plan(request, checked, submit_context)
        return _page(request, checked, submit_context, key=_key(request), plan=plan)
    if checked.draft is None:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return _page(request, checked, submit_context, key=_key(request), status=status)
    return _send(request, checked, submit_context)


@require_POST
@page
def check_typed(request: PageRequest) -> JsonResponse:
    """Check the text for the page's script, 400 ms after the last key; nothing is stored."""
    submit_context = submit_context_for(request.viewer)
    posted = _posted(request, submit_context)
    checked = check(
        posted.typed, viewer=request.viewer, submit_context=submit_context, also=posted.faults
    )
    plan = _plan(request, checked, submit_context)
    panel = panel_of(checked, plan, _grids(request, checked))
    answer: dict[str, Any] = {
        "yaml": posted.typed.text,
        "errors": [fault.to_json() for fault in checked.faults],
        "summary": translated(faults_in_words(checked)),
        "plan": _panel_html(request, panel),
        "verdict": translated(panel.verdict) + _(": ") + translated(panel.headline),
    }
    if posted.typed.document is not None:
        answer |= _form_answer(request, checked, submit_context, posted.had_roles)
    elif posted.typed.text.strip():
        answer["is_kept"] = True
    return JsonResponse(answer, headers={"Cache-Control": "private, no-store"})


def _form_answer(
    request: PageRequest,
    checked: SubmitCheck,
    submit_context: SubmitContext,
    had_roles: tuple[str, ...],
) -> dict[str, Any]:
    """Return the values of the form, or the whole form if its fields have changed."""
    document = checked.typed.document
    roles = submit_fields.roles_of(document)
    fields = submit_fields.values_of(document, roles)
    answer: dict[str, Any] = {"fields": fields | submit_check.written_out(document)}
    shown = tuple(request.http.POST.getlist("pins"))
    had_secrets = submit_check.secrets_in(request.http.POST).keys()
    if (
        roles != had_roles
        or pins_offered(document, submit_context) != shown
        or submit_check.secrets_of(document).keys() != had_secrets
    ):
        context = _form_context(request, checked, submit_context)
        answer["fields_html"] = render_to_string("submit/_fields.html", context, request.http)
    return answer


def _send(
    request: PageRequest, checked: SubmitCheck, submit_context: SubmitContext
) -> HttpResponse:
    key = f"submit:{_key(request)}"
    try:
        job, is_new = _submit(request, checked.typed, submit_context, key)
    except IdempotencyConflictError as error:
        # The user went back, changed the form and posted it again, on purpose or by mistake.
        numbers = ", ".join(str(job.pk) for job in jobs_of_key(request.viewer, Key(word=key)))
        messages.error(
            request.http,
            gettext(
                "This form has already submitted job %(numbers)s, and its content has "
                "changed since. Nothing was submitted. Submit again to add another job."
            )
            % {"numbers": numbers},
        )
        return _page(request, checked, submit_context, status=error.status)
    except DomainError as error:
        messages.error(request.http, translated(error.message))
        return _page(request, checked, submit_context, key=_key(request), status=error.status)
    if is_new:
        messages.success(request.http, gettext("Job %(pk)s queued.") % {"pk": job.pk})
    return HttpResponseRedirect(reverse("job", args=[job.pk]))


def _submit(
    request: PageRequest, typed: Typed, submit_context: SubmitContext, key: str
) -> tuple[Job, bool]:
    """Submit the job, or all jobs of another system's document, and return the first."""
    if typed.imported is None:
        return submit_job(
            submission=submission_of(typed.complete, typed.text),
            viewer=request.viewer,
            submit_context=submit_context,
            now=request.now,
            idempotency_key=key,
        )
    jobs, is_new = submit_import(
        typed.imported,
        submission_of_import(typed.imported, typed.text),
        viewer=request.viewer,
        submit_context=submit_context,
        now=request.now,
        idempotency_key=key,
    )
    return jobs[0], is_new


def _plan(
    request: PageRequest, checked: SubmitCheck, submit_context: SubmitContext
) -> JobPlan | None:
    """Return the plan of a valid job, from the round engine."""
    document = checked.typed.complete
    if checked.draft is None or document is None:
        return None
    imported = checked.typed.imported
    return plan_job(
        tasks=imported.at_once if imported is not None else 1,
        document=document,
        viewer=request.viewer,
        submit_context=submit_context,
        config=round_config(),
        now=request.now,
    )


def _grids(request: PageRequest, checked: SubmitCheck) -> DraftGrids | None:
    """Return the grids of a valid hybrid job."""
    draft = checked.draft
    if draft is None:
        return None
    return grids_of_draft(request.viewer, draft.spec, tenant_id=draft.virtual_cluster.tenant_id)


def _posted(
    request: PageRequest, submit_context: SubmitContext, *, is_sent: bool = False
) -> Posted:
    form: Mapping[str, str] = request.http.POST.dict()
    text = form.get("yaml", "").replace("\r\n", "\n")
    if len(text) > MOST_TEXT:
        raise InvalidError(
            gettext("The text is too long for this page."),
            field="yaml",
            value=len(text),
            remedy=gettext("Submit it by REST or with the CLI, or move parts of it to a file."),
        )
    typed = read_typed(text, lambda: import_context(request.viewer, submit_context, request.now))
    had_roles = submit_fields.roles_in(form)
    if _source(form, text) == FORM and had_roles and (typed.document or not text.strip()):
        before = typed.document or {}
        made = submit_fields.changes(form, before, had_roles)
        typed = with_changes(typed, [*made, *submit_check.taken_out(form, before)])
    change = form.get("change", "")
    for role, name in submit_check.names_begun(form):
        if change == f"add-secret:{role}" or (is_sent and not change):
            typed = submit_check.with_secret(typed, role, name)
    typed, faults = with_upload(request, _changed(typed, change), submit_context)
    typed = submit_check.filled_in(typed, form)
    return Posted(typed=typed, had_roles=had_roles, change=change, faults=faults)


def _source(form: Mapping[str, str], text: str) -> str:
    """Return the last edited pane: from the script, or by comparing with the shown text."""
    if form.get("source") in (FORM, YAML):
        return form["source"]
    return FORM if form.get("shown") == _digest(text) else YAML


def _changed(typed: Typed, change: str) -> Typed:
    act, _, role = change.partition(":")
    if act == "add-role":
        return with_role(typed)
    if act == "remove-role":
        return without_role(typed, role)
    if act == "remove-secret":
        role, _, name = role.partition(":")
        return submit_check.without_secret(typed, role, name)
    if act == "translate" and typed.imported is not None:
        return read_typed(to_yaml(tidy(typed.imported.spec)))
    return typed


def _beginning(
    request: PageRequest, submit_context: SubmitContext
) -> tuple[Typed, tuple[str, ...]]:
    """Return the initial text, an older job's document or a sample, and its message."""
    query = request.http.GET
    origin = query.get("clone", "")
    if origin.isascii() and origin.isdecimal() and len(origin) < 19:
        text, lost = text_of_job(job_detail(request.viewer, int(origin)))
        notes = (
            (
                gettext("Secrets are not copied. Enter them again: %(lost)s.")
                % {"lost": ", ".join(lost)},
            )
            if lost
            else ()
        )
        return read_typed(text), notes
    saved = query.get("saved", "")
    if saved.isascii() and saved.isdecimal() and len(saved) < 19:
        return read_typed(template_for(request.viewer, int(saved)).text), ()
    wanted = query.get("virtual_cluster", "")
    sample = query.get("template", "")
    is_open = wanted in _open_clusters(request.viewer, submit_context)
    cluster = wanted if is_open else usual_cluster(request.viewer, submit_context)
    return read_typed(sample_text(sample, cluster)), ()


def usual_cluster(viewer: Viewer, submit_context: SubmitContext) -> str:
    """Return the viewer's last virtual cluster, or the one with most idle guaranteed devices."""
    clusters = _open_clusters(viewer, submit_context)
    if len(clusters) < 2:
        return next(iter(clusters), "")
    return last_virtual_cluster(viewer, clusters) or idlest_virtual_cluster(
        {name: cluster.pk for name, cluster in clusters.items() if submit_context.may_use(cluster)}
    )


def _open_clusters(viewer: Viewer, submit_context: SubmitContext) -> dict[str, VirtualCluster]:
    """Return the virtual clusters by name whose tenants let the viewer submit jobs."""
    return {
        name: cluster
        for name, cluster in submit_context.clusters.items()
        if viewer.can(Permission.SUBMIT_JOBS, cluster.tenant_id)
    }


def _page(
    request: PageRequest,
    checked: SubmitCheck,
    submit_context: SubmitContext,
    *,
    key: str = "",
    notes: tuple[str, ...] = (),
    plan: JobPlan | None = None,
    status: int = HTTPStatus.OK,
) -> HttpResponse:
    context = _form_context(request, checked, submit_context) | {
        "text": checked.typed.text,
        "shown": _digest(checked.typed.text),
        "key": key or uuid.uuid4().hex,
        "panel": panel_of(checked, plan, _grids(request, checked)),
        "summary": faults_in_words(checked),
        "notes": notes,
        "samples": SAMPLES,
        "templates": templates_of(request.viewer)[:MOST_TEMPLATES],
        "homes": [
            name
            for pk, name in request.viewer.tenant_names.items()
            if request.viewer.can(Permission.SUBMIT_JOBS, pk)
        ],
        "call": submit_calls(request.portal_url),
    }
    return request.render("submit/page.html", context, status=status)


def _form_context(
    request: PageRequest, checked: SubmitCheck, submit_context: SubmitContext
) -> dict[str, Any]:
    posted = request.http.POST
    document = checked.typed.document
    form = form_of(
        checked,
        clusters=tuple(_open_clusters(request.viewer, submit_context)),
        submit_context=submit_context,
        device_types=device_type_names(request.viewer),
        beyond_nodes=current_topology().levels_of_nodes,
        pins=posted.getlist("pins")
        if document is None
        else pins_offered(document, submit_context),
        posted=posted.dict(),
    )
    return {
        "form": form,
        "formats": ", ".join(TITLES.values()),
        "most_upload_bytes": MOST_BYTES,
    }


def _panel_html(request: PageRequest, panel: Panel) -> str:
    return render_to_string("submit/_panel.html", {"panel": panel}, request.http)


def _key(request: PageRequest) -> str:
    """Return the idempotency key of the page, if this page could have created it."""
    key = request.http.POST.get("key", "")
    return key if len(key) == 32 and key.isalnum() and key.isascii() else uuid.uuid4().hex


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
