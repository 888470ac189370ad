"""Policies of each virtual cluster, and the decisions of their shadow policies."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib import messages
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.i18n import Name
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.forms import error_text, put_faults, shown_version
from portal.web.policy_fields import (
    policy_args_text,
    policy_names,
    policy_query,
    policy_summary,
)
from portal.web.vc_forms import PolicyForm
from portal.web.viewing import PageRequest, page
from scheduling.clusters.models.virtual_clusters import active_shadows
from scheduling.clusters.services.cluster_edits import ChangeVc
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster
from scheduling.clusters.services.vc_values import MAX_SHADOW_POLICIES
from scheduling.what_if.queries import (
    PolicyInForce,
    ShadowTotal,
    policies_in_force,
    regrets_of,
)
from scheduling.what_if.services.what_if import KEPT_REGRET
from tenants.errors import DomainError, NotFoundError

SPANS: Final = {"24h": timedelta(hours=24), "7d": timedelta(days=7), "30d": timedelta(days=30)}
LONGEST_NAME: Final = 40
SHADOW_HOURS: Final = 24
"""Length of a shadow of the policy advisor."""


@require_safe
@page
def policies(asked: PageRequest) -> HttpResponseBase:
    """Show every visible virtual cluster with its policy and its shadow policies."""
    return _policies(asked)


@require_safe
@page
def shadow_fields(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Render the fields of the chosen shadow policy's parameters."""
    _visible(asked, vc_id)
    form = _shadow_form(vc_id, asked.http.GET.get("add", ""))
    return asked.render("policies/_shadow_args.html", {"policy_form": form})


@require_POST
@page
def shadows(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Add a shadow policy with the posted parameters, or remove one."""
    found = _visible(asked, vc_id)
    sent = asked.http.POST
    if "remove" in sent:
        kept = [s for place, s in enumerate(found.shadows) if str(place) != sent["remove"]]
        try:
            _write(asked, found, kept)
            messages.success(
                asked.http,
                _("Shadow policy removed from %(name)s.") % {"name": found.name},
            )
        except DomainError as error:
            messages.error(asked.http, error_text(error))
        return redirect("policies")
    return _add(asked, found)


def _visible(asked: PageRequest, vc_id: int) -> PolicyInForce:
    for vc in policies_in_force(asked.viewer, since=asked.now):
        if vc.id == vc_id:
            return vc
    raise NotFoundError(_("Virtual cluster not found."), field="id", value=vc_id)


def _add(asked: PageRequest, vc: PolicyInForce) -> HttpResponseBase:
    sent = asked.http.POST.copy()
    name = sent["policy"] = sent.get("add", "")[:LONGEST_NAME]
    form = _shadow_form(vc.id, name, sent)
    if form.is_valid():
        # Without its fields an unticked box would be False, where the default is True.
        args = form.args() if sent.get("args_of") == name else {}
        more: dict[str, Any] = {"policy": name, "policy_args": args}
        if sent.get("hours") == str(SHADOW_HOURS):
            more["until"] = (asked.now + timedelta(hours=SHADOW_HOURS)).isoformat()
        try:
            _write(asked, vc, [*active_shadows(vc.shadows, asked.now), more])
        except DomainError as error:
            if not vc.can_edit:
                messages.error(asked.http, error_text(error))
                return redirect("policies")
            put_faults(form, error)
        else:
            messages.success(
                asked.http,
                _("Shadow policy %(add)s added to %(name)s.") % {"add": name, "name": vc.name},
            )
            return redirect("policies")
    return _policies(asked, refused=(vc.id, form))


def _write(asked: PageRequest, vc: PolicyInForce, wanted: list[Any]) -> None:
    edit_virtual_cluster(
        viewer=asked.viewer,
        edit=ChangeVc(virtual_cluster=vc.name, values={"shadows": wanted}),
        now=asked.now,
        expected_version=shown_version(asked.http.POST.get("version", "")),
    )


def _policies(
    asked: PageRequest, *, refused: tuple[int, PolicyForm] | None = None
) -> HttpResponseBase:
    """Show the page, with a ``refused`` form instead of an empty one."""
    span = asked.http.GET.get("span", "")
    span = span if span in SPANS else "7d"
    found = policies_in_force(asked.viewer, since=asked.now - SPANS[span])
    forms = dict([refused]) if refused else {}
    regrets = regrets_of(asked.viewer, since=asked.now - KEPT_REGRET)
    context = {
        "clusters": [
            {**_shown(vc), "form": forms.get(vc.id), "regret": regrets.get(vc.id)} for vc in found
        ],
        "stats": _stats(found),
        "spans": [
            (words.duration(length.total_seconds()), name, name == span)
            for name, length in SPANS.items()
        ],
        "span": span,
        "names": policy_names(),
        "most": MAX_SHADOW_POLICIES,
    }
    return asked.render("policies/policies.html", context, status=422 if refused else 200)


def _shadow_form(vc_id: int, policy: str, sent: QueryDict | None = None) -> PolicyForm:
    """Return the form of a new shadow policy, with unique IDs: a page has many."""
    return PolicyForm(sent, policy=policy, policy_args={}, auto_id=f"shadow-{vc_id}-%s")


def _shown(vc: PolicyInForce) -> dict[str, Any]:
    """Return a virtual cluster with the rows of its shadow policies: configured ones first."""
    totals = {(total.policy, _key(total.policy_args)): total for total in vc.totals}
    rows = []
    for place, shadow in enumerate(vc.shadows):
        total = totals.pop((shadow["policy"], _key(shadow["policy_args"])), None)
        row = _row(shadow["policy"], shadow["policy_args"], total, place=place)
        until = shadow.get("until")
        rows.append({**row, "until": datetime.fromisoformat(until) if until else None})
    rows += [_row(total.policy, total.policy_args, total) for total in totals.values()]
    return {
        "vc": vc,
        "summary": policy_summary(vc.policy),
        "rows": rows,
        "can_add": vc.can_edit and len(vc.shadows) < MAX_SHADOW_POLICIES,
    }


def _row(
    policy: str, args: Mapping[str, Any], total: ShadowTotal | None, *, place: int | None = None
) -> dict[str, Any]:
    return {
        "policy": policy,
        "args": policy_args_text(args),
        "query": policy_query(args),
        "total": total,
        "agreed": total.agreeing / total.rounds if total and total.rounds else None,
        "place": place,
        "seconds": total.mean_ms / 1000 if total else None,
    }


def _key(args: Any) -> str:
    return json.dumps(args, sort_keys=True)


def _stats(found: tuple[PolicyInForce, ...]) -> tuple[Stat, ...]:
    totals = [total for vc in found for total in vc.totals]
    rounds = sum(total.rounds for total in totals)
    differing = rounds - sum(total.agreeing for total in totals)
    faults = [vc.name for vc in found if vc.fault]
    kinds = sorted({vc.policy for vc in found})
    return (
        Stat(
            label=_("Active policies"),
            value=words.count(len(kinds)),
            context=", ".join(kinds[:6]) or _("no virtual clusters"),
        ),
        Stat(
            label=_("Shadow policies"),
            value=words.count(sum(len(vc.shadows) for vc in found)),
            unit=_("active"),
            context=_("decide each stored round; no effect on jobs"),
        ),
        Stat(
            label=_("Disagreement"),
            value=words.percent(differing / rounds) if rounds else "",
            context=_("of %(rounds)s of shadow policies")
            % {"rounds": words.plural(rounds, "decision", "decisions")},
        ),
        Stat(
            label=_("Failing policies"),
            value=words.count(len(faults)),
            context=Name(", ".join(faults)) or _("none failing"),
            tone="bad" if faults else "",
        ),
    )
