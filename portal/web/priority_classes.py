"""Priority classes: names of priorities, one of which is the default."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.formfaults import error_text, put_faults, shown_version, status_of
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.priority_classes import PriorityClassRow, list_priority_classes
from scheduling.clusters.services.priority_classes import (
    HIGHEST,
    LOWEST,
    create_priority_class,
    delete_priority_class,
    update_priority_class,
)
from tenants.errors import DomainError, NotFoundError, StaleEditError
from tenants.roles import Permission


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
    """The list, with the form for a new one."""
    form = PriorityForm(asked.http.POST or None)
    if asked.http.method == "POST":
        asked.viewer.require(Permission.EDIT_PRIORITY_CLASSES, what="priority classes")
        if form.is_valid() and _create(asked, form):
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
def delete(asked: PageRequest, class_id: int) -> HttpResponseBase:
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


def _create(asked: PageRequest, form: PriorityForm) -> bool:
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
