"""Import rules: mappings of queues and accounts of other systems to local names."""

from collections.abc import Iterable

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.formfaults import error_text, put_faults, status_of
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.import_rules import list_import_rules
from scheduling.clusters.queries.names import virtual_cluster_names
from scheduling.clusters.queries.priority_classes import list_priority_classes
from scheduling.clusters.services.import_rules import create_import_rule, delete_import_rule
from scheduling.compat.formats import RULE_KINDS
from tenants.errors import DomainError
from tenants.roles import Permission


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
    """The list, with the form for a new one."""
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
        if form.is_valid() and _create(asked, form):
            return redirect("import-rules")
    rows = [(row, RULE_KINDS.get(row.kind, row.kind)) for row in list_import_rules(asked.viewer)]
    context = {"rows": rows, "form": form, "can_edit": can_edit}
    return asked.render("virtual_clusters/import_rules.html", context, status=status_of(form))


@posts_from("import-rules")
@page
def delete(asked: PageRequest, rule_id: int) -> HttpResponseBase:
    try:
        delete_import_rule(viewer=asked.viewer, rule_id=rule_id)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(asked.http, _("Rule deleted. Jobs submitted by it are not affected."))
    return redirect("import-rules")


def _create(asked: PageRequest, form: ImportRuleForm) -> bool:
    try:
        made = create_import_rule(viewer=asked.viewer, **form.cleaned_data)
    except DomainError as refused:
        put_faults(form, refused)
        return False
    messages.success(asked.http, _("Rule for %(name)s created.") % {"name": made.name})
    return True
