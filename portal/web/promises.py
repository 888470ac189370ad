"""Page *Sharing promise*: waits in a virtual cluster against a private cluster of its cells."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, npgettext
from django.views.decorators.http import require_safe

from portal.addresses import job_url
from portal.api.promises import promises_csv
from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.components.stats import PageVerdict, Stat
from portal.web.viewing import PageRequest, page
from scheduling.core.promises.figures import Cause, Verdict
from scheduling.what_if.queries import PromiseView, promise_view

SPANS: Final = {"1d": 1, "7d": 7, "30d": 30}
USUAL: Final = "7d"
MOST_ROWS: Final = 100
CAUSES: Final = {
    Cause.EARLIER_JOBS: gettext_lazy(
        "earlier jobs of this virtual cluster started later, each by at most grace + two rounds"
    ),
    Cause.HARDWARE: gettext_lazy("more unhealthy nodes than spare ones"),
    Cause.ADMIN: gettext_lazy(
        "nodes cordoned, drained, unreachable or reserved for other tenants"
    ),
    Cause.CAP: gettext_lazy("a cap of the owner, reached by other jobs"),
    Cause.REQUEST: gettext_lazy(
        "a request that cells do not cover, such as roles within one rack"
    ),
    Cause.DENIED: gettext_lazy("a private cluster would have started it"),
    Cause.EVICTED: gettext_lazy("preempted for another virtual cluster"),
}
VERDICTS: Final = {
    Verdict.KEPT: ("tick", "ok", gettext_lazy("Met")),
    Verdict.EXCEEDED: ("clock", "warn", gettext_lazy("Exceeded")),
    Verdict.VIOLATED: ("warning", "bad", gettext_lazy("Violated")),
}


@require_safe
@page
def promises(asked: PageRequest, vc_id: int) -> HttpResponse:
    """Show the stored audits of the last days."""
    span = _span(asked)
    found = _found(asked, vc_id, span)
    beyond = [job for job in found.jobs if job["verdict"] != Verdict.KEPT]
    context = {
        "found": found,
        "span": span,
        "days": words.date_span(found.since, found.until),
        "spans": [(name, name == span) for name in SPANS],
        "verdict": promise_verdict(found),
        "stats": tuple(_stats(found)),
        "waits": (
            (_("This virtual cluster"), found.own_wait_s),
            (_("Private cluster"), found.private_wait_s),
        ),
        "rows": [_row(job) for job in beyond[:MOST_ROWS]],
        "hidden_rows": max(0, len(beyond) - MOST_ROWS),
        "causes": [(CAUSES[Cause(name)], number) for name, number in found.causes.items()],
        "csv": f"{reverse('virtual-cluster-promises-csv', args=[vc_id])}?span={span}",
        "twin": f"/api/v1/virtual-clusters/{vc_id}/promises/?"
        + urlencode({"since": found.since, "until": found.until}),
    }
    return asked.render("virtual_clusters/promises.html", context)


@require_safe
@page
def promises_file(asked: PageRequest, vc_id: int) -> HttpResponse:
    """Return the audited jobs as CSV."""
    return promises_csv(asked.viewer, _found(asked, vc_id, _span(asked)))


def _span(asked: PageRequest) -> str:
    name = asked.http.GET.get("span", USUAL)
    return name if name in SPANS else USUAL


def _found(asked: PageRequest, vc_id: int, span: str) -> PromiseView:
    until = asked.now.astimezone(UTC).date() - timedelta(days=1)
    since = until - timedelta(days=SPANS[span] - 1)
    return promise_view(asked.viewer, vc_id, since=since, until=until)


def promise_verdict(found: PromiseView) -> PageVerdict:
    """Return whether the promise was met, and the wait that decides it."""
    jobs, violated = len(found.jobs), found.verdicts[Verdict.VIOLATED]
    exceeded = found.verdicts[Verdict.EXCEEDED]
    total = words.plural(jobs, "job", "jobs")
    if not jobs:
        return PageVerdict(text=_("No guaranteed job was audited in this time."))
    if violated:
        worst = max(
            (job for job in found.jobs if job["verdict"] == Verdict.VIOLATED),
            key=lambda job: job["own_wait_s"] - job["private_wait_s"],
        )
        return PageVerdict(
            tone="bad",
            text=_(
                "The promise was violated: %(violated)s of %(jobs)s waited longer than allowed."
            )
            % {"violated": words.count(violated), "jobs": total},
            detail=_("Job %(job)s waited %(own)s; on a private cluster it would wait %(private)s.")
            % {
                "job": worst["job"],
                "own": words.duration(worst["own_wait_s"]),
                "private": words.duration(worst["private_wait_s"]),
            },
        )
    if exceeded:
        cause = max(found.causes, key=lambda name: found.causes[name], default="")
        return PageVerdict(
            tone="ok",
            text=_("The promise was met: no violation among %(jobs)s.") % {"jobs": total},
            detail=_("%(exceeded)s waited beyond the bound; most frequent cause: %(cause)s.")
            % {
                "exceeded": words.plural(exceeded, "job", "jobs"),
                "cause": CAUSES[Cause(cause)] if cause else words.DASH,
            },
        )
    return PageVerdict(
        tone="ok",
        text=ngettext(
            "The promise was met: the only job started within its bound.",
            "The promise was met: all %(jobs)s jobs started within their bounds.",
            jobs,
        )
        % {"jobs": words.count(jobs)},
    )


def _stats(found: PromiseView) -> Iterator[Stat]:
    verdicts, jobs = found.verdicts, len(found.jobs)
    violated, exceeded = verdicts[Verdict.VIOLATED], verdicts[Verdict.EXCEEDED]
    yield Stat(
        label=_("Promise met"),
        value=words.count(verdicts[Verdict.KEPT]),
        unit=_("of %(jobs)s") % {"jobs": words.plural(jobs, "job", "jobs")},
        context=npgettext(
            "count", "%(days)s day audited", "%(days)s days audited", len(found.days)
        )
        % {"days": words.count(len(found.days))},
    )
    yield Stat(
        label=_("Violations"),
        value=words.count(violated),
        context=_("a private cluster would have started these jobs")
        if violated
        else _("%(jobs)s waited longer, each with a listed cause")
        % {"jobs": words.plural(exceeded, "job", "jobs")}
        if exceeded
        else _("no job waited longer than promised"),
        tone="bad" if violated else "",
    )
    yield Stat(
        label=_("p90 wait"),
        value=_duration(found.own_wait_s["p90"]),
        context=_("private cluster: %(wait)s") % {"wait": _duration(found.private_wait_s["p90"])},
    )
    if found.guaranteed_hours and found.used_hours is not None:
        yield Stat(
            label=_("Guarantee in use"),
            value=words.percent(found.used_hours / found.guaranteed_hours),
            context=_("%(used)s of %(guaranteed)s device-hours")
            % {
                "used": words.gpu_hours(found.used_hours),
                "guaranteed": words.gpu_hours(found.guaranteed_hours),
            },
        )
    if found.returned_devices is not None and found.return_s is not None:
        yield Stat(
            label=_("Lent and returned"),
            value=words.count(found.returned_devices),
            unit=npgettext("count", "device", "devices", found.returned_devices),
            context=_("p90 within %(time)s") % {"time": _duration(found.return_s["p90"])}
            if found.returned_devices
            else _("no job needed lent devices"),
        )


def _row(job: Mapping[str, Any]) -> dict[str, Any]:
    icon, tone, word = VERDICTS[Verdict(job["verdict"])]
    return {
        "job": job["job"],
        "url": job_url(job["job"]),
        "eligible": datetime.fromtimestamp(job["eligible"], tz=UTC),
        "started": job["started"],
        "own": job["own_wait_s"],
        "private": job["private_wait_s"],
        "bound": job["bound_s"],
        "icon": icon,
        "tone": tone,
        "word": word,
        "causes": [CAUSES[Cause(name)] for name in job["causes"]],
    }


def _duration(seconds: float | None) -> str:
    return words.DASH if seconds is None else words.duration(seconds)
