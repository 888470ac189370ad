"""Page of device types and their aliases."""

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.forms import error_text, put_faults, status_of
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.device_types import list_device_types
from scheduling.clusters.services.device_types import create_device_alias, delete_device_alias
from tenants.errors import DomainError
from tenants.roles import Permission


class DeviceAliasForm(forms.Form):
    """A new alias."""

    device_type = forms.ChoiceField(label=gettext_lazy("Device type"))
    alias = forms.CharField(label=gettext_lazy("Alias"), max_length=60)


@page
def device_types(asked: PageRequest) -> HttpResponseBase:
    """Show the device types with their names, and the form for a new alias."""
    can_edit = asked.viewer.can(Permission.MANAGE_NODES)
    rows = list_device_types(asked.viewer)
    form = DeviceAliasForm(asked.http.POST or None)
    choice = form.fields["device_type"]
    assert isinstance(choice, forms.ChoiceField)  # noqa: S101 so it is declared above
    choice.choices = [(row.device_type, row.device_type) for row in rows if row.devices]
    if asked.http.method == "POST":
        asked.viewer.require(Permission.MANAGE_NODES, what="device types")
        if form.is_valid() and _create_alias(asked, form):
            return redirect("device-types")
    context = {"rows": rows, "form": form, "can_edit": can_edit}
    return asked.render("nodes/device_types.html", context, status=status_of(form))


@posts_from("device-types")
@page
def delete_alias(asked: PageRequest, alias_id: int) -> HttpResponseBase:
    try:
        delete_device_alias(viewer=asked.viewer, alias_id=alias_id)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(asked.http, _("Alias deleted. Submitted jobs are not affected."))
    return redirect("device-types")


def _create_alias(asked: PageRequest, form: DeviceAliasForm) -> bool:
    try:
        made = create_device_alias(viewer=asked.viewer, **form.cleaned_data)
    except DomainError as refused:
        put_faults(form, refused)
        return False
    messages.success(asked.http, _("Alias %(name)s created.") % {"name": made.alias})
    return True
