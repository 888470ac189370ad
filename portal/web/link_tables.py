"""The page *Link tables* for admins of nodes: measured links, and the form of a probe."""

from collections.abc import Iterable

from django import forms
from django.contrib import messages
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from portal.api.documents import submit_context_for
from portal.i18n import gettext_lazy
from portal.web.forms import put_faults
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.names import device_type_names
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.parallelism.links import MOST_NODES, link_tables, probe_links
from tenants.errors import DomainError


class LinkProbeForm(forms.Form):
    """A probe: device type, virtual cluster and number of nodes."""

    nodes = forms.TypedChoiceField(
        label=gettext_lazy("Nodes"),
        coerce=int,
        choices=[(number, number) for number in range(1, MOST_NODES + 1)],
    )

    def __init__(
        self, data: QueryDict | None, *, types: Iterable[str], clusters: Iterable[str]
    ) -> None:
        super().__init__(data)
        self.fields["device_type"] = forms.ChoiceField(
            label=gettext_lazy("Device type"), choices=[(name, name) for name in types]
        )
        self.fields["virtual_cluster"] = forms.ChoiceField(
            label=gettext_lazy("Virtual cluster"), choices=[(name, name) for name in clusters]
        )


@require_http_methods(["GET", "HEAD", "POST"])
@page
def tables(asked: PageRequest) -> HttpResponseBase:
    """Show the measured links by type and class; a POST submits a probe job."""
    rows = link_tables(asked.viewer, now=asked.now)
    context = submit_context_for(asked.viewer)
    form = LinkProbeForm(
        asked.http.POST if asked.http.method == "POST" else None,
        types=device_type_names(asked.viewer),
        clusters=sorted(context.clusters),
    )
    if form.is_bound and form.is_valid():
        job = _probe(asked, form, context)
        if job is not None:
            text = _("Job %(pk)s measures the links. Its result appears here.")
            messages.success(asked.http, text % {"pk": job.pk})
            return redirect("link-tables")
    return asked.render("nodes/link_tables.html", {"rows": rows, "form": form})


def _probe(asked: PageRequest, form: LinkProbeForm, context: SubmitContext) -> Job | None:
    """Submit the probe; None with the faults at the form if it is refused."""
    try:
        return probe_links(
            viewer=asked.viewer,
            device_type=form.cleaned_data["device_type"],
            virtual_cluster=form.cleaned_data["virtual_cluster"],
            nodes=form.cleaned_data["nodes"],
            submit_context=context,
            now=asked.now,
        )
    except DomainError as refused:
        put_faults(form, refused)
        return None
