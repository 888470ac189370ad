"""Policy advisor: past days of a virtual cluster under every policy, with one recommendation."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from portal.addresses import job_url
from portal.api.rounds import what_if_state
from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.forms import error_text, made_before, make_once, put_faults, status_of
from portal.web.policy_fields import policy_args_text, policy_summary
from portal.web.vc_forms import AdviceForm
from portal.web.viewing import PageRequest, page
from portal.web.what_if import VERDICTS, accuracy_lines
from scheduling.clusters.queries.names import device_type_names, virtual_cluster_names
from scheduling.jobs.queries.jobs import JobRow, rows_of_jobs
from scheduling.what_if.models import WhatIf, WhatIfKind
from scheduling.what_if.queries import PolicyInForce, policies_in_force, visible_advice
from scheduling.what_if.services.what_if import (
    KEPT,
    ask_advice,
    cancel_what_if,
    what_if_for,
    what_ifs_of,
)
from tenants.errors import DomainError

MOST_LISTED: Final = 20
MOST_SHOWN: Final = 50
_ADVICE: Final = WhatIfKind.ADVICE
_SERIES: Final = (
    ("mean", gettext_lazy("Mean completion time"), "c1"),
    ("p99", gettext_lazy("p99 completion"), "c2"),
    ("unfairness", gettext_lazy("Worst unfairness"), "c3"),
)


@page
def advisor(asked: PageRequest) -> HttpResponseBase:
    """Show the form with the advice of the last day; a POST requests one and redirects to it."""
    form = AdviceForm(
        asked.http.POST if asked.http.method == "POST" else None,
        clusters=virtual_cluster_names(asked.viewer),
        types=device_type_names(asked.viewer),
        initial={"period": "7", "virtual_cluster": asked.http.GET.get("vc", "")},
    )
    if asked.http.method == "POST" and form.is_valid():
        since, until = form.span(asked.now)
        ask = partial(
            ask_advice,
            viewer=asked.viewer,
            virtual_cluster=form.cleaned_data["virtual_cluster"],
            since=since,
            until=until,
            nodes=form.nodes(),
            now=asked.now,
        )
        made: int | None = None
        try:
            made = make_once(asked, ask, lambda question: question.pk).pk
        except DomainError as error:
            made = made_before(error)
            if made is None:
                put_faults(form, error)
        if made is not None:
            messages.success(asked.http, gettext("Replays started. They may take 15 minutes."))
            return redirect("policies-advice", made)
    rows = what_ifs_of(asked.viewer, now=asked.now, kind=_ADVICE).order_by("-id")[:MOST_LISTED]
    context = {
        "form": form,
        "rows": [(row, what_if_state(row), _nodes_text(row.nodes)) for row in rows],
        "has_clusters": bool(form.fields["virtual_cluster"].choices),  # type: ignore[attr-defined]
    }
    return asked.render("policies/advisor.html", context, status=status_of(form))


@require_safe
@page
def advice(asked: PageRequest, pk: int) -> HttpResponseBase:
    """Show an advice: its progress, then accuracy, plot, recommendation, winners and losers."""
    row = what_if_for(asked.viewer, pk, now=asked.now, kind=_ADVICE)
    state = what_if_state(row)
    context: dict[str, Any] = {
        "row": row,
        "state": state,
        "nodes": _nodes_text(row.nodes),
        "step": min(row.step + 1, row.steps),
        "share": (row.step + 0.5) / max(row.steps, 1),
        "until": row.asked_at + KEPT,
        "can_cancel": state in ("queued", "running") and _may_cancel(asked, row),
    }
    if state == "done":
        context |= _answered(asked, row)
    if asked.wants_part and state in ("queued", "running"):
        return asked.render("policies/_advice_progress.html", context)
    if asked.wants_part:
        headers = {"HX-Refresh": "true"}
        return asked.render("policies/_advice_progress.html", context, headers=headers)
    return asked.render("policies/advice.html", context)


@require_POST
@page
def cancel(asked: PageRequest, pk: int) -> HttpResponseBase:
    try:
        cancel_what_if(asked.viewer, pk, now=asked.now, kind=_ADVICE)
    except DomainError as error:
        what_if_for(asked.viewer, pk, now=asked.now, kind=_ADVICE)
        messages.error(asked.http, error_text(error))
    return redirect("policies-advice", pk)


def _may_cancel(asked: PageRequest, row: WhatIf) -> bool:
    return row.asked_by_id == asked.viewer.user_id or asked.viewer.is_cluster_admin


def _nodes_text(nodes: Mapping[str, int]) -> str:
    """Describe the planned nodes; empty without any."""
    return gettext(", ").join(
        gettext("%(count)s nodes of type %(type)s") % {"count": f"{count:+d}", "type": kind}
        for kind, count in sorted(nodes.items())
    )


def _answered(asked: PageRequest, row: WhatIf) -> dict[str, Any]:
    result = visible_advice(asked.viewer, row.result)
    changes = result["changes"]
    names = rows_of_jobs(asked.viewer, [one["job"] for one in changes["jobs"][:MOST_SHOWN]])
    advised = result["recommendation"]["policy"]
    in_force = next(
        (
            vc
            for vc in policies_in_force(asked.viewer, since=asked.now)
            if vc.id == row.virtual_cluster_id
        ),
        None,
    )
    return {
        "result": result,
        "accuracy": accuracy_lines(result["accuracy"]),
        "advised": advised,
        "verdict": result["recommendation"]["verdict"],
        "summary": policy_summary(advised) if advised else "",
        "stats": _stats(result),
        "figure": figure(result["policies"]),
        "figure_words": _figure_words(result),
        "lines": [_line(one, result, place) for place, one in enumerate(result["policies"])],
        "clusters": changes["virtual_clusters"],
        "others": sum(changes["others"].values()),
        "jobs": [
            _job(one, names.get(one["job"]))
            for one in changes["jobs"][:MOST_SHOWN]
            if one["verdict"] in ("winner", "loser")
        ],
        "in_force": in_force,
        "can_act": _can_act(in_force, row, advised),
    }


def _can_act(vc: PolicyInForce | None, row: WhatIf, advised: str | None) -> bool:
    """Whether the viewer may adopt or shadow the recommended policy of this cluster."""
    return bool(vc and vc.can_edit and advised and not row.nodes and vc.policy != advised)


def figure(policies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the plot: each figure relative to the policy in force, and restarts per job."""
    shown = [one for one in policies if one["mean"] is not None]
    names = [one["policy"] for one in shown]
    traces: list[dict[str, Any]] = []
    for key, name, colour in _SERIES:
        base = policies[0][key]
        ratios = [
            None if not base or one[key] is None else round(one[key] / base, 4) for one in shown
        ]
        trace = {"type": "bar", "name": str(name), "x": names, "y": ratios, "colour": colour}
        traces.append(trace)
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": gettext("Restarts per job"),
            "x": names,
            "y": [round(one["restarts"], 3) for one in shown],
            "yaxis": "y2",
            "colour": "text",
        }
    )
    layout = {
        "barmode": "group",
        "showlegend": True,
        "yaxis": {"title": {"text": gettext("relative to the policy in force")}},
        "yaxis2": {
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "showgrid": False,
            "title": {"text": gettext("restarts per job")},
        },
        "margin": {"r": 56, "b": 64},
    }
    return {"data": traces, "layout": layout}


def _figure_words(result: Mapping[str, Any]) -> str:
    regret = result["regret"]
    if regret is None:
        return gettext("No job has completed in the replay.")
    return gettext(
        "Lowest mean completion time: %(policy)s. Lower is better for all four figures."
    ) % {"policy": regret["best"]}


def _stats(result: Mapping[str, Any]) -> tuple[Stat, ...]:
    in_force, regret = result["policies"][0], result["regret"]
    return (
        Stat(
            label=gettext("Mean time to completion"),
            value=_time(in_force["mean"]),
            context=gettext("under %(policy)s, the policy in force")
            % {"policy": in_force["policy"]},
        ),
        Stat(
            label=gettext("Regret of the policy in force"),
            value=words.DASH if regret is None else words.duration(regret["seconds"]),
            context=""
            if regret is None
            else gettext("%(share)s above %(policy)s, the best mean")
            % {"share": words.percent(regret["share"]), "policy": regret["best"]},
        ),
        Stat(
            label=gettext("Winners"),
            value=words.count(_sum(result, "winner")),
            context=gettext("complete sooner under %(policy)s")
            % {"policy": result["changes"]["policy"]},
        ),
        Stat(
            label=gettext("Losers"),
            value=words.count(_sum(result, "loser")),
            context=gettext("complete later"),
            tone="warn" if _sum(result, "loser") else "",
        ),
    )


def _sum(result: Mapping[str, Any], verdict: str) -> int:
    changes = result["changes"]
    total: int = changes["others"][verdict]
    return total + sum(int(row[verdict]) for row in changes["virtual_clusters"])


def _line(one: Mapping[str, Any], result: Mapping[str, Any], place: int) -> dict[str, Any]:
    return {
        "policy": one["policy"],
        "args": policy_args_text(one["policy_args"]),
        "in_force": place == 0,
        "advised": place > 0 and one["policy"] == result["recommendation"]["policy"],
        "mean": _time(one["mean"]),
        "p99": _time(one["p99"]),
        "unfairness": words.DASH if one["unfairness"] is None else words.amount(one["unfairness"]),
        "restarts": words.decimal(one["restarts"], 2),
        "completed": words.count(one["completed"]),
        "fault": one["fault"],
        "failed": one["failed_decisions"],
    }


def _time(seconds: float | None) -> str:
    return words.DASH if seconds is None else words.duration(seconds)


def _job(row: Mapping[str, Any], known: JobRow | None) -> dict[str, Any]:
    word, _many, tone, icon = VERDICTS[row["verdict"]]
    change = row["change_s"]
    shape = gettext("%(time)s sooner") if change < 0 else gettext("%(time)s later")
    return {
        "id": row["job"],
        "name": known.name if known else "",
        "owner": known.owner if known else "",
        "url": job_url(row["job"]) if known else "",
        "change": shape % {"time": words.duration(abs(change))},
        "word": word,
        "tone": tone,
        "icon": icon,
    }
