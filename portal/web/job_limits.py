"""Limits of live jobs: of the cluster with its tenants, and of one tenant with its members."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.formfaults import put_faults, status_of
from portal.web.viewing import PageRequest, page
from scheduling.jobs.queries.job_limits import (
    LimitView,
    cluster_job_limits,
    job_limits_of_members,
    job_limits_of_tenants,
)
from scheduling.jobs.services.job_limits import (
    MOST,
    JobLimits,
    set_cluster_limits,
    set_tenant_limits,
)
from tenants.errors import DomainError
from tenants.roles import Permission
from tenants.selectors import members_for, tenant_for, tenants_for


class PersonLimitForm(forms.Form):
    """Limits that a lead may set."""

    per_person = forms.IntegerField(
        label=gettext_lazy("Live jobs per user"), required=False, min_value=1, max_value=MOST
    )


class LimitsForm(PersonLimitForm):
    """Limits that a cluster admin may set."""

    per_tenant = forms.IntegerField(
        label=gettext_lazy("Live jobs per tenant"), required=False, min_value=1, max_value=MOST
    )


@page
def job_limits(asked: PageRequest) -> HttpResponseBase:
    """Show the limits of the cluster and of all tenants."""
    asked.viewer.require(Permission.MANAGE_TENANTS, what="the limits of jobs")
    found = cluster_job_limits()
    form = _form(asked, found.per_person, found.per_tenant)
    if asked.http.method == "POST" and form.is_valid():
        try:
            set_cluster_limits(viewer=asked.viewer, limits=JobLimits(**form.cleaned_data))
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(asked.http, _("Job limits of the cluster saved."))
            return redirect("job-limits")
    tenants = [tenant for tenant in tenants_for(asked.viewer) if not tenant.is_archived]
    context = {"form": form, "found": found, "rows": job_limits_of_tenants(tenants)}
    return asked.render("tenants/job_limits.html", context, status=status_of(form))


@page
def tenant_job_limits(asked: PageRequest, tenant_id: int) -> HttpResponseBase:
    """Show the limits of a tenant and of all members."""
    tenant = tenant_for(asked.viewer, tenant_id)
    asked.viewer.require(Permission.SET_CAPS, tenant_id, what="the limits of the tenant")
    (found,) = job_limits_of_tenants([tenant])
    may_set_both = asked.viewer.can(Permission.MANAGE_TENANTS)
    form = _form(asked, found.per_person, found.per_tenant if may_set_both else None)
    if asked.http.method == "POST" and form.is_valid():
        limits = JobLimits(**{"per_tenant": found.per_tenant.own, **form.cleaned_data})
        try:
            set_tenant_limits(
                viewer=asked.viewer, tenant_id=tenant_id, name=tenant.name, limits=limits
            )
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(
                asked.http, _("Job limits of %(name)s saved.") % {"name": tenant.name}
            )
            return redirect("tenant-job-limits", tenant_id)
    context = {
        "tenant": tenant,
        "form": form,
        "found": found,
        "rows": job_limits_of_members(list(members_for(asked.viewer, tenant_id=tenant_id))),
        "can_manage": may_set_both,
        "can_manage_members": asked.viewer.can(Permission.MANAGE_MEMBERS, tenant_id),
    }
    return asked.render("tenants/tenant_job_limits.html", context, status=status_of(form))


def _form(
    asked: PageRequest, per_person: LimitView, per_tenant: LimitView | None
) -> PersonLimitForm:
    initial: dict[str, Any] = {"per_person": per_person.own}
    if per_tenant is None:
        return PersonLimitForm(asked.http.POST or None, initial=initial)
    initial["per_tenant"] = per_tenant.own
    return LimitsForm(asked.http.POST or None, initial=initial)
