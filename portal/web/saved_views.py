"""Saved views of the list of jobs, and templates of jobs."""

from typing import Final

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.web.formfaults import error_text
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.jobs.services.saved import (
    delete_template,
    delete_view,
    save_template,
    save_view,
    templates_of,
)
from tenants.errors import DomainError
from tenants.roles import Permission

MOST_QUERY: Final = 1000


@require_POST
@page
def keep_view(request: PageRequest) -> HttpResponse:
    """Save the filters of the list under a name, or delete those of a name."""
    form = request.http.POST
    query = form.get("query", "").removeprefix("?")
    try:
        if "delete" in form:
            word = form["delete"]
            delete_view(viewer=request.viewer, pk=int(word) if _is_number(word) else 0)
            messages.success(request.http, _("View deleted."))
        else:
            name = form.get("name", "")
            saved = save_view(viewer=request.viewer, name=name, query=query, now=request.now)
            messages.success(request.http, _("View %(name)s saved.") % {"name": saved.name})
    except DomainError as error:
        messages.error(request.http, error_text(error))
        # Filters that are too long to store may be too long for an address too.
        query = query if len(query) <= MOST_QUERY else ""
    return HttpResponseRedirect(f"{reverse('jobs')}?{query}" if query else reverse("jobs"))


@require_safe
@page
def job_templates(request: PageRequest) -> HttpResponse:
    """The templates that the viewer may use."""
    viewer = request.viewer
    rows = [
        (
            row,
            row.owner_id == viewer.user_id
            or (row.tenant_id is not None and viewer.can(Permission.STOP_ANY_JOB, row.tenant_id)),
        )
        for row in templates_of(viewer)
    ]
    return request.render("submit/templates.html", {"rows": rows})


@posts_from("submit")
@page
def keep_template(request: PageRequest) -> HttpResponseBase:
    """Save the text of the submit page as a template."""
    form = request.http.POST
    try:
        made = save_template(
            viewer=request.viewer,
            name=form.get("template_name", ""),
            text=form.get("yaml", "").replace("\r\n", "\n"),
            tenant=form.get("template_tenant", ""),
            now=request.now,
        )
    except DomainError as error:
        messages.error(request.http, error_text(error))
        return redirect("submit")
    messages.success(request.http, _("Template %(name)s saved.") % {"name": made.name})
    return HttpResponseRedirect(f"{reverse('submit')}?saved={made.pk}")


@posts_from("job-templates")
@page
def drop_template(request: PageRequest) -> HttpResponseBase:
    """Delete a template."""
    word = request.http.POST.get("id", "")
    delete_template(viewer=request.viewer, pk=int(word) if _is_number(word) else 0)
    messages.success(request.http, _("Template deleted."))
    return redirect("job-templates")


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 19
