"""The start page of a person: own jobs, share and messages; admins get the cluster page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import quantiles
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.addresses import address, job_url
from portal.web.cluster_drawing import tenants_in_order, vc_uses
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.first_steps import first_steps
from portal.web.inbox import inbox_rows
from portal.web.jobs import end_in_words
from portal.web.overview import overview
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.cluster import vc_uses as uses_for
from scheduling.jobs.queries.instances import nodes_of_jobs
from scheduling.jobs.queries.jobs import JobFilter, JobRow, page_of_jobs, page_of_queue
from scheduling.jobs.queries.mine import (
    FAILURES_FOR,
    Declared,
    Failures,
    OwnCounts,
    declared_ends,
    own_counts,
    own_failures,
)
from scheduling.notices.queries import budgets_for
from scheduling.notices.services.quotas import gpu_hours_since, month_start
from tenants.models import User
from tenants.roles import Permission
from tenants.selectors import own_device_cap
from tenants.services import mark_failures_seen
from tenants.viewers import Viewer
from workers.goodput import CurvePoint, trends_of

ROWS: Final = 8
MESSAGES: Final = 6
MOST_CLUSTERS: Final = 6
LEAST_INTERVALS: Final = 4
LONGEST_LEFT: Final = 3650 * 86400.0
"""Seconds that the start page shows at most, as a job may declare any last step."""
HOLDING: Final = frozenset(
    {"admitted", "starting", "running", "suspect", "preempting", "stopping"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds devices.

    Attributes:
        place: requested devices and its nodes.
        metric: newest value as text; empty if the job reports nothing.
        trend: recent values of the metric.
        share: done share of the declared steps; None if unknown.
        done: progress as text.
        ends: expected end as text.
        sentence: the state as a sentence, shown instead of metric and progress; empty if it runs.
    """

    row: JobRow
    url: str
    place: str
    metric: str
    trend: Sequence[float]
    share: float | None
    done: str
    ends: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLeft:
    """GPU-hours of a tenant in this month."""

    tenant: str
    used: float
    hours: float

    @property
    def left(self) -> float:
        return max(self.hours - self.used, 0.0)

    @property
    def percent_used(self) -> int:
        return min(100, round(100 * self.used / self.hours))


def home(request: HttpRequest) -> HttpResponseBase:
    """Show *Cluster* to cluster admins and *Mine* to everybody else."""
    user = request.user
    view = overview if isinstance(user, User) and user.is_cluster_admin else mine
    return view(request)


@page
def mine(asked: PageRequest) -> HttpResponseBase:
    """Show the jobs, the share and the messages of the reader."""
    if asked.wants_part:
        return asked.render("home/_mine.html", _context(asked))
    return asked.render("home/mine.html", {**_context(asked), "first_steps": first_steps(asked)})


@posts_from("mine")
@page
def failures_seen(asked: PageRequest) -> HttpResponseBase:
    """Empty the list of failures."""
    mark_failures_seen(viewer=asked.viewer, now=asked.now)
    return redirect("mine")


def _context(asked: PageRequest) -> dict[str, Any]:
    viewer = asked.viewer
    counts = own_counts(viewer)
    running = _running(viewer, counts, asked.now)
    waiting = page_of_queue(viewer, JobFilter(mine=True), limit=ROWS).results
    since = _failures_since(asked)
    failures = own_failures(viewer, since=since, most=ROWS)
    messages = inbox_rows(viewer, most=MESSAGES)
    budgets = budgets_now(viewer, asked.now)
    cap = own_device_cap(viewer)
    return {
        "running": running,
        "waiting": waiting,
        "failures": [(one, end_in_words(one.row)) for one in failures.shown],
        "failed": failures,
        "since": since,
        "counts": counts,
        "stats": (
            *_job_stats(counts, waiting, failures, since, asked.now),
            _devices_stat(counts, cap),
            *map(_budget_stat, budgets[:1]),
        ),
        "uses": vc_uses(
            [use for use in uses_for(viewer) if use.tenant_id in viewer.roles][:MOST_CLUSTERS],
            tenants_in_order(viewer),
        ),
        "cap": cap,
        "budgets": budgets,
        "inbox": messages,
        "can_submit": viewer.can_somewhere(Permission.SUBMIT_JOBS),
        "has_tenant": bool(viewer.roles) or viewer.is_cluster_admin,
    }


def _failures_since(asked: PageRequest) -> datetime:
    user = asked.http.user
    marked = user.failures_seen_at if isinstance(user, User) else None
    week = asked.now - FAILURES_FOR
    return max(marked, week) if marked else week


def budgets_now(viewer: Viewer, now: datetime) -> tuple[BudgetLeft, ...]:
    """Return the budgets of the viewer's tenants with their use in this month."""
    hours = {pk: most for pk, most in budgets_for(viewer).items() if pk in viewer.roles}
    if not hours:
        return ()
    used = gpu_hours_since(month_start(now), now=now, tenant_ids=set(hours))
    return tuple(
        BudgetLeft(tenant=viewer.name_of(pk), used=used.get(pk, 0.0), hours=most)
        for pk, most in sorted(hours.items())
    )


def _running(viewer: Viewer, counts: OwnCounts, now: datetime) -> tuple[RunningJob, ...]:
    if not counts.holding:
        return ()
    rows = page_of_jobs(viewer, JobFilter(states=HOLDING, mine=True), limit=ROWS).results
    ids = [row.id for row in rows]
    nodes, trends, ends = nodes_of_jobs(rows), trends_of(ids, now=now), declared_ends(ids)
    return tuple(
        _running_job(row, nodes.get(row.id, ()), trends.get(row.id, ()), ends.get(row.id), now)
        for row in rows
    )


def _running_job(
    row: JobRow,
    nodes: Sequence[str],
    points: Sequence[CurvePoint],
    declared: Declared | None,
    now: datetime,
) -> RunningJob:
    metric, trend = metric_of(points)
    total = declared.total_steps if declared else None
    step = points[-1].step if points else None
    share = min(1.0, step / total) if total and step is not None else None
    return RunningJob(
        row=row,
        url=job_url(row.id),
        place=_place(row, nodes),
        metric=metric,
        trend=trend,
        share=share,
        done=_done(step, total),
        ends=_ends(row, remaining(points, total), now),
        sentence=_SENTENCES[row.state]() if row.state in _SENTENCES else "",
    )


_SENTENCES: Final = {
    "admitted": lambda: _("The nodes prepare the job."),
    "starting": lambda: _("The nodes start the job."),
    "suspect": lambda: _("A node of this job does not respond. The job may still run."),
    "preempting": lambda: _("The job saves its work and releases its devices."),
    "stopping": lambda: _("The job is stopping and saves its work."),
}


def _place(row: JobRow, nodes: Sequence[str]) -> str:
    devices = words.plural(row.devices, "device", "devices")
    if not nodes:
        return devices
    where = nodes[0] if len(nodes) == 1 else words.plural(len(nodes), "node", "nodes")
    return _("%(devices)s on %(where)s") % {"devices": devices, "where": where}


def metric_of(points: Sequence[CurvePoint]) -> tuple[str, tuple[float, ...]]:
    """Return the newest loss as text with its trend; without a loss, the goodput."""
    losses = [point.loss for point in points if point.loss is not None]
    if losses:
        return _("loss %(value)s") % {"value": words.amount(losses[-1])}, tuple(losses)
    if not points:
        return "", ()
    pace = tuple(point.goodput for point in points)
    return _("%(value)s samples/s") % {"value": words.amount(pace[-1])}, pace


def _done(step: int | None, total: int | None) -> str:
    if step is None:
        return ""
    if total is None:
        return _("step %(step)s") % {"step": words.count(step)}
    return _("%(step)s of %(total)s steps") % {
        "step": words.count(step),
        "total": words.count(total),
    }


def remaining(points: Sequence[CurvePoint], total: int | None) -> tuple[float, float] | None:
    """Return the p10 and p90 of the seconds until step ``total``, from the pace of intervals.

    None without a total, or with fewer than ``LEAST_INTERVALS`` intervals of the newest attempt.
    """
    if total is None or not points:
        return None
    same = [point for point in points if point.attempt == points[-1].attempt]
    rates = [
        (after.step - before.step) / seconds
        for before, after in pairwise(same)
        if (seconds := (after.at - before.at).total_seconds()) > 0 and after.step >= before.step
    ]
    left = max(0, total - same[-1].step)
    if len(rates) < LEAST_INTERVALS:
        return None
    deciles = quantiles(rates, n=10, method="inclusive")
    slow, fast = deciles[0], deciles[-1]
    return (min(left / fast, LONGEST_LEFT), min(left / slow, LONGEST_LEFT)) if slow > 0 else None


def _ends(row: JobRow, left: tuple[float, float] | None, now: datetime) -> str:
    if left is not None:
        return words.estimate(*left, now)
    if row.max_duration_seconds and row.started_at:
        most = row.max_duration_seconds - (now - row.started_at).total_seconds()
        return _("in at most %(time)s") % {"time": words.duration(max(0.0, most))}
    return _("No end declared")


def _job_stats(
    counts: OwnCounts,
    waiting: Sequence[JobRow],
    failures: Failures,
    since: datetime,
    now: datetime,
) -> tuple[Stat, ...]:
    return (
        Stat(
            label=_("Running"),
            value=words.count(counts.jobs.get("running", 0)),
            unit=_("jobs"),
            context=_other_states(counts.jobs) or _("none is starting or ending"),
            url=f"{address('jobs')}?mine=1&state=live",
        ),
        Stat(
            label=_("Waiting"),
            value=words.count(counts.queued),
            unit=_("jobs"),
            context=_next_start(waiting, now),
            url=f"{address('jobs')}?mine=1&state=queued",
        ),
        Stat(
            label=_("Failed"),
            value=words.count(failures.count) + ("+" if failures.is_more else ""),
            unit=_("jobs"),
            context=_("since %(moment)s") % {"moment": words.clock(since)},
            tone="bad" if failures.count else "",
        ),
    )


def _devices_stat(counts: OwnCounts, cap: int | None) -> Stat:
    return Stat(
        label=_("My devices"),
        value=words.count(counts.held),
        unit="" if cap is None else _("of %(cap)s") % {"cap": words.count(cap)},
        context=_("%(devices)s borrowed") % {"devices": words.count(counts.borrowed)}
        if counts.borrowed
        else _("none borrowed"),
    )


def _budget_stat(budget: BudgetLeft) -> Stat:
    return Stat(
        label=_("Budget left"),
        value=words.gpu_hours(budget.left),
        unit=_("GPU-hours"),
        context=_("of %(hours)s this month, %(tenant)s")
        % {"hours": words.gpu_hours(budget.hours), "tenant": budget.tenant},
        url=address("usage"),
    )


def _other_states(jobs: Mapping[str, int]) -> str:
    named = (
        ("starting", _("%(count)s starting")),
        ("admitted", _("%(count)s admitted")),
        ("suspect", _("%(count)s suspect")),
        ("preempting", _("%(count)s preempting")),
        ("stopping", _("%(count)s stopping")),
    )
    return _(", ").join(
        text % {"count": words.count(jobs[state])} for state, text in named if jobs.get(state)
    )


def _next_start(waiting: Sequence[JobRow], now: datetime) -> str:
    if not waiting:
        return _("none queued")
    known = [row.eta for row in waiting if row.eta is not None]
    if not known:
        return _("no start estimate yet")
    first = min(known, key=lambda found: found.p50)
    p10, _p50, p90 = first.seconds(now)
    most = math.inf if first.is_open else p90
    return _("next start %(time)s") % {
        "time": words.estimate(p10, most, now, soonest=first.opens_in(now))
    }
