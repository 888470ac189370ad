"""What-if: past days of a virtual cluster under another policy or another guarantee."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from portal.addresses import job_url
from portal.api.rounds import what_if_out, what_if_state
from portal.i18n import gettext_lazy, translated
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.forms import error_text, made_before, make_once, put_faults, status_of
from portal.web.policy_fields import policy_args_asked, policy_args_text, policy_summary
from portal.web.vc_forms import MOMENT, PolicyForm, WhatIfForm
from portal.web.viewing import PageRequest, page
from portal.web.what_if_figures import (
    NO_CHANGE,
    by_job,
    distribution,
    distribution_words,
    what_if_verdict,
)
from scheduling.clusters.queries.names import device_type_names, virtual_cluster_names
from scheduling.jobs.queries.jobs import JobRow, rows_of_jobs
from scheduling.what_if.models import WhatIf
from scheduling.what_if.services.what_if import (
    KEPT,
    STEPS,
    ask_what_if,
    cancel_what_if,
    what_if_for,
    what_ifs_of,
)
from tenants.errors import DomainError

MOST_SHOWN: Final = 200
MOST_LISTED: Final = 20
VERDICTS: Final = {
    "winner": (gettext_lazy("Winner"), gettext_lazy("Winners"), "ok", "succeeded"),
    "loser": (gettext_lazy("Loser"), gettext_lazy("Losers"), "bad", "failed"),
    "same": (gettext_lazy("Unchanged"), gettext_lazy("Unchanged"), "", "stopped"),
    "unknown": (gettext_lazy("Unknown"), gettext_lazy("Unknown"), "", "suspect"),
}
_MEASURES: Final = (
    ("avg_jct_h", gettext_lazy("Mean time to completion"), True, True),
    ("p50_jct_h", gettext_lazy("Median time to completion"), True, True),
    ("p90_jct_h", gettext_lazy("p90 time to completion"), True, True),
    ("p99_jct_h", gettext_lazy("p99 time to completion"), True, True),
    ("makespan_h", gettext_lazy("Total time (makespan)"), True, True),
    ("avg_restarts", gettext_lazy("Restarts per job"), False, True),
    ("worst_ftf", gettext_lazy("Worst unfairness (1 is a fair share)"), False, True),
    ("avg_gpus_busy", gettext_lazy("Average devices busy"), False, False),
    ("completed", gettext_lazy("Jobs completed"), False, False),
    ("failed_decisions", gettext_lazy("Failed policy decisions"), False, True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the comparison; ``tone`` shows whether the other side is better."""

    name: str
    was: str
    would_be: str
    change: str
    tone: str


@page
def what_if(asked: PageRequest) -> HttpResponseBase:
    """Show the form with the what-ifs of the last day; a POST creates one and redirects to it."""
    form = _form(asked)
    if asked.http.method == "POST" and form.is_valid():
        since, until = form.span(asked.now)
        ask = partial(
            ask_what_if,
            viewer=asked.viewer,
            virtual_cluster=form.cleaned_data["virtual_cluster"],
            policy=form.cleaned_data["policy"],
            policy_args=form.args(),
            since=since,
            until=until,
            size_aware=form.cleaned_data["size_aware"],
            guarantee=form.guarantee(),
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
            messages.success(asked.http, gettext("What-if started. It may take several minutes."))
            return redirect("policies-what-if-answer", made)
    questions = what_ifs_of(asked.viewer, now=asked.now).order_by("-id")[:MOST_LISTED]
    context = {
        "form": form,
        "policy_form": form,
        "questions": [(row, what_if_state(row), _change_of(row)) for row in questions],
        "has_clusters": bool(form.fields["virtual_cluster"].choices),  # type: ignore[attr-defined]
    }
    return asked.render("policies/what_if.html", context, status=status_of(form))


@require_safe
@page
def policy_fields(asked: PageRequest) -> HttpResponseBase:
    """Render the fields of the chosen policy's parameters."""
    form = PolicyForm.of(asked.http.GET.get("policy", ""), {}, None)
    return asked.render("virtual_clusters/_policy_args.html", {"policy_form": form})


@require_safe
@page
def answer(asked: PageRequest, pk: int) -> HttpResponseBase:
    """Show a what-if: its progress, and the result with winners and losers."""
    row = what_if_for(asked.viewer, pk, now=asked.now)
    state = what_if_state(row)
    context: dict[str, Any] = {
        "row": row,
        "facts": what_if_out(row),
        "state": state,
        "change": _change_of(row),
        "summary": policy_summary(row.policy),
        "step": min(row.step + 1, len(STEPS)),
        "steps": len(STEPS),
        "doing": STEPS[min(row.step, len(STEPS) - 1)],
        "share": (row.step + 0.5) / len(STEPS),
        "until": row.asked_at + KEPT,
        "can_cancel": row.asked_by_id == asked.viewer.user_id or asked.viewer.is_cluster_admin,
        "link": asked.http.build_absolute_uri(),
        "question": gettext("What-if: %(cluster)s with %(change)s")
        % {"cluster": row.virtual_cluster.name, "change": _change_of(row)},
    }
    if state == "done":
        context |= _answered(asked, row.result)
    if asked.wants_part and state in ("queued", "running"):
        return asked.render("policies/_progress.html", context)
    if asked.wants_part:
        return asked.render("policies/_progress.html", context, headers={"HX-Refresh": "true"})
    return asked.render("policies/answer.html", context)


@require_POST
@page
def cancel(asked: PageRequest, pk: int) -> HttpResponseBase:
    try:
        cancel_what_if(asked.viewer, pk, now=asked.now)
    except DomainError as error:
        what_if_for(asked.viewer, pk, now=asked.now)
        messages.error(asked.http, error_text(error))
    return redirect("policies-what-if-answer", pk)


def _form(asked: PageRequest) -> WhatIfForm:
    clusters = virtual_cluster_names(asked.viewer)
    types = device_type_names(asked.viewer)
    if asked.http.method == "POST":
        sent: QueryDict = asked.http.POST
        return WhatIfForm(
            sent, policy=sent.get("policy", ""), policy_args={}, clusters=clusters, types=types
        )
    query = asked.http.GET
    policy = query.get("policy", "") or "fifo"
    return WhatIfForm(
        policy=policy,
        policy_args=policy_args_asked(policy, query),
        clusters=clusters,
        types=types,
        initial={
            "policy": policy,
            "virtual_cluster": query.get("vc", ""),
            "period": "1",
            "since": f"{words.local(asked.now) - timedelta(days=1):{MOMENT}}",
            "until": f"{words.local(asked.now):{MOMENT}}",
        },
    )


def _change_of(row: WhatIf) -> str:
    """Describe the change."""
    args = policy_args_text(row.policy_args)
    guarantee = ", ".join(words.devices(count, [kind]) for kind, count in row.guarantee.items())
    parts = (
        row.policy,
        args,
        gettext("with %(guarantee)s") % {"guarantee": guarantee} if guarantee else "",
        gettext("known job sizes") if row.size_aware else "",
    )
    return gettext(", ").join(part for part in parts if part)


def _answered(asked: PageRequest, result: Mapping[str, Any]) -> dict[str, Any]:
    verdict = asked.http.GET.get("verdict", "")
    verdict = verdict if verdict in VERDICTS else ""
    changes = result["jobs"]
    rows = [row for row in changes if not verdict or row["verdict"] == verdict]
    wanted = {row["job"] for row in (*rows[:MOST_SHOWN], *changes[:MOST_SHOWN])}
    names = rows_of_jobs(asked.viewer, sorted(wanted))
    titles = {pk: known.name for pk, known in names.items()}
    return {
        "result": result,
        # Results stored by earlier versions lack these fields.
        "accuracy": accuracy_lines(result["accuracy"]) if "accuracy" in result else [],
        "others": _others(result.get("others", dict.fromkeys(VERDICTS, 0))),
        "page_verdict": what_if_verdict(result),
        "stats": _stats(result),
        "distribution": distribution(changes),
        "distribution_words": distribution_words(changes),
        "by_job": by_job(changes, titles),
        "measures": _measures(result["was"], result["would_be"]),
        "tabs": [
            ("", gettext("All"), sum(result[key] for key in VERDICTS), not verdict),
            *(
                (key, several, result[key], key == verdict)
                for key, (_one, several, _tone, _icon) in VERDICTS.items()
            ),
        ],
        "jobs": [_job(row, names.get(row["job"])) for row in rows[:MOST_SHOWN]],
        "not_shown": max(0, len(rows) - MOST_SHOWN) + result["jobs_not_told"],
        "left_out": gettext(", ").join(
            gettext("%(count)s %(state)s")
            % {"count": words.count(count), "state": translated(why)}
            for why, count in result["left_out"].items()
        ),
    }


def accuracy_lines(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the comparison of the replay with the facts, for starts and for ends."""
    seconds = found["round_s"]
    return [
        _accuracy_line(gettext("Start times"), found["starts"], seconds),
        _accuracy_line(gettext("End times"), found["ends"], seconds),
    ]


def _accuracy_line(name: str, facts: Mapping[str, Any], round_seconds: float) -> dict[str, str]:
    """Return one line of the comparison."""
    share, middle, high = facts["within_one_round"], facts["median_s"], facts["p90_s"]
    return {
        "name": name,
        "jobs": words.count(facts["jobs"]),
        "within": words.DASH if share is None else words.percent(share),
        "round": words.duration(round_seconds),
        "median": words.DASH if middle is None else words.duration(middle),
        "p90": words.DASH if high is None else words.duration(high),
        "missing": words.count(facts["missing"]),
    }


def _others(counts: Mapping[str, int]) -> str:
    """Return the numbers of jobs of other tenants by result; empty without such jobs."""
    return gettext(", ").join(
        gettext("%(count)s %(state)s")
        % {
            "count": words.count(counts[key]),
            "state": str(one if counts[key] == 1 else several).lower(),
        }
        for key, (one, several, _tone, _icon) in VERDICTS.items()
        if counts[key]
    )


def _stats(result: Mapping[str, Any]) -> tuple[Stat, ...]:
    was, would_be = result["was"], result["would_be"]
    devices = sum(result["guarantee"].values())
    other = sum(result["other_guarantee"].values())
    return (
        Stat(
            label=gettext("Mean time to completion"),
            value=_hours(would_be["avg_jct_h"]),
            context=gettext("currently %(avg_jct_h)s, %(was)s")
            % {
                "avg_jct_h": _hours(was["avg_jct_h"]),
                "was": _relative(was, would_be, "avg_jct_h"),
            },
        ),
        Stat(
            label=gettext("Winners"),
            value=words.count(result["winner"]),
            context=gettext("complete sooner"),
        ),
        Stat(
            label=gettext("Losers"),
            value=words.count(result["loser"]),
            context=gettext("complete later"),
            tone="warn" if result["loser"] else "",
        ),
        Stat(
            label=gettext("Restarts per job"),
            value=words.decimal(would_be["avg_restarts"] or 0, 2),
            context=gettext("currently %(value)s")
            % {"value": words.decimal(was["avg_restarts"] or 0, 2)},
        ),
        Stat(
            label=gettext("Devices busy"),
            value=words.decimal(would_be["avg_gpus_busy"] or 0, 1),
            unit=gettext("of %(devices)s") % {"devices": words.count(other)},
            context=gettext("currently %(value)s of %(devices)s")
            % {
                "value": words.decimal(was["avg_gpus_busy"] or 0, 1),
                "devices": words.count(devices),
            },
        ),
    )


def _measures(was: Mapping[str, Any], would_be: Mapping[str, Any]) -> list[Measure]:
    found = []
    for key, name, is_time, less_is_better in _MEASURES:
        old, new = was.get(key), would_be.get(key)
        show = _hours if is_time else _plain
        tone = ""
        if old is not None and new is not None and abs(new - old) > 0.005 * abs(old):
            tone = "ok" if (new < old) == less_is_better else "bad"
        found.append(
            Measure(
                name=name,
                was=show(old),
                would_be=show(new),
                change=_relative(was, would_be, key),
                tone=tone,
            )
        )
    return found


def _relative(was: Mapping[str, Any], would_be: Mapping[str, Any], key: str) -> str:
    old, new = was.get(key), would_be.get(key)
    if old is None or new is None:
        return words.DASH
    if not old:
        return gettext("unchanged") if not new else f"{new - old:+.2f}"
    share = (new - old) / old
    if abs(share) < NO_CHANGE:
        return gettext("unchanged")
    shape = gettext("%(share)s more") if share > 0 else gettext("%(share)s less")
    return shape % {"share": words.percent(abs(share))}


def _hours(hours: float | None) -> str:
    return words.DASH if hours is None else words.duration(hours * 3600)


def _plain(value: float | None) -> str:
    return words.DASH if value is None else words.amount(value)


def _job(row: Mapping[str, Any], known: JobRow | None) -> dict[str, Any]:
    word, _many, tone, icon = VERDICTS[row["verdict"]]
    change = row["change_s"]
    shape = (
        ""
        if change is None
        else (gettext("%(time)s sooner") if change < 0 else gettext("%(time)s later"))
    )
    return {
        "id": row["job"],
        "name": known.name if known else "",
        "owner": known.owner if known else "",
        "devices": known.devices if known else None,
        "url": job_url(row["job"]) if known else "",
        "in_fact": row["in_fact_s"],
        "was": row["was_s"],
        "would_be": row["would_be_s"],
        "change": shape % {"time": words.duration(abs(change))} if change else "",
        "word": word,
        "tone": tone,
        "icon": icon,
    }
