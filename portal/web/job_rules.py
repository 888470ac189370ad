"""Cluster-wide rules for submits: limits of live jobs, priority classes, import rules."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.forms import error_text, put_faults, shown_version, status_of
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.import_rules import (
    PriorityClassRow,
    list_import_rules,
    list_priority_classes,
)
from scheduling.clusters.queries.names import virtual_cluster_names
from scheduling.clusters.services.import_rules import create_import_rule, delete_import_rule
from scheduling.clusters.services.priority_classes import (
    HIGHEST,
    LOWEST,
    create_priority_class,
    delete_priority_class,
    update_priority_class,
)
from scheduling.compat.formats import RULE_KINDS
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
from tenants.errors import DomainError, NotFoundError, StaleEditError
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


class PriorityForm(forms.Form):
    """A priority class."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=40)
    value = forms.IntegerField(label=gettext_lazy("Priority"), min_value=LOWEST, max_value=HIGHEST)
    note = forms.CharField(label=gettext_lazy("Note"), required=False, max_length=200)
    is_default = forms.BooleanField(label=gettext_lazy("Default class"), required=False)


class PriorityEditForm(PriorityForm):
    """A priority class in the version that the editor saw."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)


@page
def priority_classes(asked: PageRequest) -> HttpResponseBase:
    """Show the list, with the form for a new priority class."""
    form = PriorityForm(asked.http.POST or None)
    if asked.http.method == "POST":
        asked.viewer.require(Permission.EDIT_PRIORITY_CLASSES, what="priority classes")
        if form.is_valid() and _create_class(asked, form):
            return redirect("priority-classes")
    context = {
        "rows": list_priority_classes(asked.viewer),
        "form": form,
        "can_edit": asked.viewer.can(Permission.EDIT_PRIORITY_CLASSES),
    }
    template = "virtual_clusters/priority_classes.html"
    return asked.render(template, context, status=status_of(form))


@page
def priority_class(asked: PageRequest, class_id: int) -> HttpResponseBase:
    asked.viewer.require(Permission.EDIT_PRIORITY_CLASSES, what="priority classes")
    row = _row(asked, class_id)
    form = PriorityEditForm(asked.http.POST or None, initial=_initial(row))
    stale = False
    if asked.http.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        try:
            update_priority_class(
                viewer=asked.viewer,
                priority_class_id=class_id,
                expected_version=values.pop("version"),
                **values,
            )
        except StaleEditError:
            row = _row(asked, class_id)
            form, stale = PriorityEditForm(initial=_initial(row)), True
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(
                asked.http, _("%(name)s changed.") % {"name": form.cleaned_data["name"]}
            )
            return redirect("priority-classes")
    context = {"row": row, "form": form, "stale": stale}
    template = "virtual_clusters/priority_class.html"
    return asked.render(template, context, status=status_of(form))


@posts_from("priority-class")
@page
def delete_class(asked: PageRequest, class_id: int) -> HttpResponseBase:
    row = _row(asked, class_id)
    try:
        delete_priority_class(
            viewer=asked.viewer,
            priority_class_id=class_id,
            expected_version=shown_version(asked.http.POST.get("version", "")),
        )
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
        return redirect("priority-class", class_id)
    messages.success(
        asked.http, _("%(name)s deleted. Submitted jobs are not affected.") % {"name": row.name}
    )
    return redirect("priority-classes")


def _create_class(asked: PageRequest, form: PriorityForm) -> bool:
    try:
        made = create_priority_class(viewer=asked.viewer, **form.cleaned_data)
    except DomainError as refused:
        put_faults(form, refused)
        return False
    messages.success(asked.http, _("%(name)s created.") % {"name": made.name})
    return True


def _row(asked: PageRequest, class_id: int) -> PriorityClassRow:
    found = next((row for row in list_priority_classes(asked.viewer) if row.id == class_id), None)
    if found is None:
        raise NotFoundError(_("Priority class not found."), field="id", value=class_id)
    return found


def _initial(row: PriorityClassRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "value": row.value,
        "note": row.note,
        "is_default": row.is_default,
        "version": row.version,
    }


class ImportRuleForm(forms.Form):
    """A new rule."""

    kind = forms.ChoiceField(label="Kind", choices=list(RULE_KINDS.items()))
    name = forms.CharField(label=gettext_lazy("Name"), max_length=100)
    virtual_cluster = forms.ChoiceField(label=gettext_lazy("Virtual cluster"), required=False)
    tenant = forms.ChoiceField(label=gettext_lazy("Tenant"), required=False)
    priority = forms.ChoiceField(label=gettext_lazy("Priority class"), required=False)
    opportunistic = forms.BooleanField(label=gettext_lazy("Opportunistic"), required=False)

    def offer(self, **names: Iterable[str]) -> None:
        """Set the choices."""
        for field, offered in names.items():
            choice = self.fields[field]
            assert isinstance(choice, forms.ChoiceField)  # noqa: S101 so it is declared above
            choice.choices = [("", "–"), *((name, name) for name in offered)]


@page
def import_rules(asked: PageRequest) -> HttpResponseBase:
    """Show the list, with the form for a new import rule."""
    can_edit = asked.viewer.can(Permission.EDIT_VC)
    form = ImportRuleForm(asked.http.POST or None)
    if can_edit:
        form.offer(
            virtual_cluster=virtual_cluster_names(asked.viewer),
            tenant=sorted(asked.viewer.tenant_names.values()),
            priority=[row.name for row in list_priority_classes(asked.viewer)],
        )
    if asked.http.method == "POST":
        asked.viewer.require(Permission.EDIT_VC, what="import rules")
        if form.is_valid() and _create_rule(asked, form):
            return redirect("import-rules")
    rows = [(row, RULE_KINDS.get(row.kind, row.kind)) for row in list_import_rules(asked.viewer)]
    context = {"rows": rows, "form": form, "can_edit": can_edit}
    return asked.render("virtual_clusters/import_rules.html", context, status=status_of(form))


@posts_from("import-rules")
@page
def delete_rule(asked: PageRequest, rule_id: int) -> HttpResponseBase:
    try:
        delete_import_rule(viewer=asked.viewer, rule_id=rule_id)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(asked.http, _("Rule deleted. Jobs submitted by it are not affected."))
    return redirect("import-rules")


def _create_rule(asked: PageRequest, form: ImportRuleForm) -> bool:
    try:
        made = create_import_rule(viewer=asked.viewer, **form.cleaned_data)
    except DomainError as refused:
        put_faults(form, refused)
        return False
    messages.success(asked.http, _("Rule for %(name)s created.") % {"name": made.name})
    return True
