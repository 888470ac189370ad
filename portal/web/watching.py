"""Log rules and idle policies of a virtual cluster."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.forms import error_text, put_faults, status_of
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.import_rules import list_priority_classes
from scheduling.core.watching.log_rules import LONGEST_NAME, LONGEST_PATTERN
from scheduling.watching.models import LogActionChoice
from scheduling.watching.queries import idle_rule_of, log_rule_for, log_rules_for
from scheduling.watching.services.idling import set_idle_rule
from scheduling.watching.services.log_rules import (
    create_log_rule,
    delete_log_rule,
    update_log_rule,
)
from tenants.errors import DomainError, StaleEditError
from tenants.roles import Permission


class LogRuleForm(forms.Form):
    """A rule about lines of logs."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    name = forms.CharField(label=gettext_lazy("Name"), max_length=LONGEST_NAME)
    pattern = forms.CharField(
        label=gettext_lazy("Pattern"), max_length=LONGEST_PATTERN, strip=False
    )
    action = forms.ChoiceField(label=gettext_lazy("Action"), choices=LogActionChoice.choices)


class EditLogRuleForm(LogRuleForm):
    """``LogRuleForm`` with a switch that enables the rule."""

    enabled = forms.BooleanField(label=gettext_lazy("Enabled"), required=False)


class IdleForm(forms.Form):
    """Default idle policy, for jobs without their own."""

    active = forms.BooleanField(label=gettext_lazy("Enable idle detection"), required=False)
    below = forms.FloatField(
        label=gettext_lazy("Idle threshold"), min_value=0.1, max_value=100, initial=5
    )
    warn_minutes = forms.IntegerField(label=gettext_lazy("Warn after"), min_value=5, initial=30)
    stop_minutes = forms.IntegerField(label=gettext_lazy("Stop after"), required=False, initial=60)
    exempt_priorities = forms.MultipleChoiceField(
        label=gettext_lazy("Exempt priority classes"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    devices = forms.ChoiceField(
        label=gettext_lazy("Idle devices"),
        choices=[
            ("all", gettext_lazy("all devices of a job")),
            ("any", gettext_lazy("any device of a job")),
        ],
        initial="all",
        required=False,
    )
    binding = forms.BooleanField(
        label=gettext_lazy("Jobs may only tighten this policy"), required=False
    )

    def __init__(self, *args: Any, names: list[str], **kwargs: Any) -> None:
        """Offer the priority classes."""
        super().__init__(*args, **kwargs)
        choice = self.fields["exempt_priorities"]
        assert isinstance(choice, forms.MultipleChoiceField)  # noqa: S101 narrows the type only
        choice.choices = [(name, name) for name in names]


@page
def log_rules(asked: PageRequest) -> HttpResponseBase:
    """Show the list, with the form for a new log rule."""
    can_edit = asked.viewer.can(Permission.MANAGE_NODES)
    form = LogRuleForm(asked.http.POST or None)
    if asked.http.method == "POST":
        asked.viewer.require(Permission.MANAGE_NODES, what="log rules")
        if form.is_valid():
            values = dict(form.cleaned_data)
            values.pop("version")
            try:
                made = create_log_rule(viewer=asked.viewer, **values)
            except DomainError as refused:
                put_faults(form, refused)
            else:
                messages.success(
                    asked.http,
                    _("Rule %(name)s added. It applies to new attempts.") % {"name": made.name},
                )
                return redirect("log-rules")
    rows = list(log_rules_for(asked.viewer))
    context = {"rows": rows, "form": form, "can_edit": can_edit}
    return asked.render("watching/log_rules.html", context, status=status_of(form))


@page
def log_rule(asked: PageRequest, rule_id: int) -> HttpResponseBase:
    asked.viewer.require(Permission.MANAGE_NODES, what="log rules")
    row = log_rule_for(asked.viewer, rule_id)
    form = EditLogRuleForm(asked.http.POST or None, initial=vars(row))
    stale = False
    if asked.http.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        try:
            update_log_rule(
                viewer=asked.viewer,
                rule_id=rule_id,
                expected_version=values.pop("version"),
                **values,
            )
        except StaleEditError:
            row = log_rule_for(asked.viewer, rule_id)
            form, stale = EditLogRuleForm(initial=vars(row)), True
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(asked.http, _("%(name)s changed.") % {"name": values["name"]})
            return redirect("log-rules")
    context = {"row": row, "form": form, "stale": stale}
    return asked.render("watching/log_rule.html", context, status=status_of(form))


@posts_from("log-rule")
@page
def delete(asked: PageRequest, rule_id: int) -> HttpResponseBase:
    try:
        delete_log_rule(viewer=asked.viewer, rule_id=rule_id)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(asked.http, _("Rule deleted."))
    return redirect("log-rules")


@page
def idle(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Edit the idle policy of a virtual cluster."""
    vc, rule = idle_rule_of(asked.viewer, vc_id)
    can_edit = asked.viewer.can(Permission.SET_CAPS, vc.tenant_id)
    names = [row.name for row in list_priority_classes(asked.viewer)]
    form = IdleForm(asked.http.POST or None, names=names, initial=_initial(rule))
    if asked.http.method == "POST":
        asked.viewer.require(Permission.SET_CAPS, vc.tenant_id, what="the idle policy")
    if asked.http.method == "POST" and form.is_valid():
        try:
            set_idle_rule(viewer=asked.viewer, virtual_cluster=vc, rule=_rule(form))
        except DomainError as refused:
            fields = {"warn_after": "warn_minutes", "stop_after": "stop_minutes"}
            put_faults(form, refused, fields)
        else:
            messages.success(asked.http, _("Idle policy saved."))
            return redirect("virtual-cluster-idle", vc_id)
    context = {"vc": vc, "rule": rule, "form": form, "can_edit": can_edit}
    return asked.render("watching/idle.html", context, status=status_of(form))


def _initial(rule: dict[str, Any]) -> dict[str, Any]:
    if not rule:
        return {}
    stop = rule["stop_after"]
    return {
        **rule,
        "active": True,
        "warn_minutes": rule["warn_after"] // 60,
        "stop_minutes": None if stop is None else stop // 60,
    }


def _rule(form: IdleForm) -> dict[str, Any] | None:
    values = form.cleaned_data
    if not values["active"]:
        return None
    stop = values["stop_minutes"]
    return {
        "below": values["below"],
        "warn_after": values["warn_minutes"] * 60,
        "stop_after": None if stop is None else stop * 60,
        "exempt_priorities": values["exempt_priorities"],
        "binding": values["binding"],
        "devices": values["devices"] or "all",
    }
