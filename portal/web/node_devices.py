"""Quarantine of single devices of a node: the page with its form, and the return to service."""

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.api.documents import round_config
from portal.i18n import gettext_lazy
from portal.web.forms import error_text
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.nodes import node_detail
from scheduling.clusters.services.nodes import set_device_health
from scheduling.rounds.services.canaries import check_device
from tenants.errors import DomainError
from tenants.roles import Permission


class QuarantineForm(forms.Form):
    """A device and the reason; without hours, the quarantine ends by hand."""

    device = forms.IntegerField(min_value=0)
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=500)
    hours = forms.FloatField(label=gettext_lazy("Hours"), required=False)


@page
def devices(asked: PageRequest, node_id: int) -> HttpResponseBase:
    """Show the devices of a node; quarantine one, test it, or return it to service."""
    asked.viewer.require(Permission.MANAGE_NODES, what="the node")
    detail = node_detail(asked.viewer, node_id)
    form = QuarantineForm(asked.http.POST or None)
    if asked.http.method == "POST" and _is_done(asked, node_id, form):
        return redirect("node-devices", node_id)
    marks = {mark.device: mark for mark in detail.marks}
    runs = {run.device: run for run in detail.canaries}
    return asked.render(
        "nodes/devices.html",
        {
            "row": detail.row,
            "form": form,
            "devices": [
                (device, marks.get(device.index), runs.get(device.index))
                for device in detail.row.view.devices
            ],
        },
    )


def _is_done(asked: PageRequest, node_id: int, form: QuarantineForm) -> bool:
    """Perform the posted action; return whether to leave the form."""
    is_release, is_check = "release" in asked.http.POST, "check" in asked.http.POST
    if is_release or is_check:
        form.fields["reason"].required = False
    if not form.is_valid():
        return False
    given = form.cleaned_data
    try:
        if is_check:
            check_device(
                viewer=asked.viewer,
                node_id=node_id,
                index=given["device"],
                config=round_config(),
                now=asked.now,
            )
            done = _("Canary job started on device %(device)s.")
        else:
            set_device_health(
                viewer=asked.viewer,
                node_id=node_id,
                index=given["device"],
                healthy=is_release,
                reason=given["reason"],
                hours=None if is_release else given["hours"],
                now=asked.now,
            )
            done = (
                _("Device %(device)s returned to service.")
                if is_release
                else _("Device %(device)s quarantined.")
            )
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
        return True
    messages.success(asked.http, done % {"device": given["device"]})
    return True
