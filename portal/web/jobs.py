"""The list of jobs: filters in the address, live rows and their texts, bulk stop."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.addresses import address, job_url
from portal.i18n import translated
from portal.web.components import words
from portal.web.job_training import Pace, pace_of
from portal.web.jobs_columns import ListOptions, list_options
from portal.web.jobs_filters import filter_bar, read_filters, total_of
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.names import virtual_cluster_names
from scheduling.core.lifecycle import JobState
from scheduling.enums import FailureClassChoice
from scheduling.jobs.queries.jobs import (
    JobFilter,
    JobRow,
    counts_by_reason,
    counts_by_state,
    page_of_queue,
)
from scheduling.jobs.queries.ordered_jobs import SORTED_JOBS, JobOrder, page_in_order
from scheduling.jobs.services.saved import views_of
from scheduling.usage.queries.device_hours import DeviceHours, hours_of_jobs
from tenants.errors import InvalidError
from tenants.roles import Permission
from tenants.selectors import users_for
from tenants.viewers import Viewer
from workers.goodput import trends_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A row of the list.

    Attributes:
        shape: the second line of its request.
        summary: the failure of the job as text; otherwise empty.
        hours: device-hours until now as pairs of number and unit; empty for none.
        started: start of the displayed span: of the wait or the run.
        ended: end of the span; None while it is live.
        pace: current training pace, if reported.
        can_stop: the viewer may stop it, and it has not ended.
        can_clone: the viewer may submit a copy.
    """

    row: JobRow
    url: str
    clone_url: str
    shape: str
    summary: str
    hours: tuple[tuple[str, str], ...]
    started: datetime
    ended: datetime | None
    can_stop: bool
    can_clone: bool
    pace: Pace | None

    @property
    def can_pick(self) -> bool:
        """Return whether any bulk action applies."""
        return self.can_stop or self.can_clone

    @property
    def stop(self) -> str:
        """Return whether the job can be stopped in bulk, or the reason."""
        if self.can_stop:
            return "yes"
        return "ended" if self.row.is_over else "refused"

    @property
    def hold(self) -> str:
        """Return whether the job can be held in bulk, or the reason."""
        if self.can_stop:
            return "yes" if self.waits else "running"
        return self.stop

    @property
    def release(self) -> str:
        """Return whether the job can be released in bulk, or the reason."""
        if not self.row.held or not self.waits:
            return "unheld"
        return self.stop

    @property
    def waits(self) -> bool:
        return self.row.state == "queued"


def listed_jobs(viewer: Viewer, rows: Iterable[JobRow], *, now: datetime) -> tuple[ListedJob, ...]:
    """Return the displayed rows, in the same order, in two queries."""
    rows = tuple(rows)
    hours = hours_of_jobs([row.id for row in rows if row.started_at], now=now)
    trends = trends_of([row.id for row in rows if row.state == "running"], now=now)
    return tuple(
        _listed(viewer, row, hours.get(row.id, DeviceHours()), pace_of(trends.get(row.id, ())))
        for row in rows
    )


def _hours(hours: DeviceHours) -> tuple[tuple[str, str], ...]:
    """Return GPU-hours and slot-hours; CPU slots are never counted as GPUs."""
    parts = ((hours.gpu, _("GPU-hours")), (hours.slot, _("slot-hours")))
    return tuple((words.gpu_hours(value), unit) for value, unit in parts if value >= 0.05)


def end_in_words(row: JobRow) -> str:
    """Describe a failure by its class and exit code; empty for any other end."""
    if row.state != "failed":
        return ""
    parts = []
    if row.failure_class:
        parts.append(translated(str(FailureClassChoice(row.failure_class).label)))
    if row.exit_code is not None:
        parts.append(_("exit %(exit_code)s") % {"exit_code": row.exit_code})
    text = _(", ").join(parts)
    return text[:1].upper() + text[1:]


def _listed(viewer: Viewer, row: JobRow, hours: DeviceHours, pace: Pace | None) -> ListedJob:
    waits = row.state == "queued"
    return ListedJob(
        row=row,
        url=job_url(row.id),
        clone_url=f"{address('submit')}?clone={row.id}",
        shape=_("opportunistic") if row.is_opportunistic else _priority(row.priority),
        summary=end_in_words(row),
        pace=pace,
        hours=_hours(hours),
        started=row.submitted_at if waits else (row.started_at or row.submitted_at),
        ended=row.finished_at,
        can_stop=not row.is_over and viewer.can_stop(row.tenant_id, row.owner_id),
        can_clone=viewer.can(Permission.SUBMIT_JOBS, row.tenant_id),
    )


def _priority(priority: int) -> str:
    """Return a priority other than the usual one as text."""
    return (
        "" if priority == USUAL_PRIORITY else _("priority %(priority)s") % {"priority": priority}
    )


USUAL_PRIORITY: Final = 10
MOST_PEOPLE: Final = 200
LONGEST_REASON: Final = 500
SAMPLE: Final = "./tessera submit -f --vc {vc} --name hello -- sh -c 'seq 5; sleep 2; echo done'"


@require_safe
@page
def jobs(request: PageRequest) -> HttpResponse:
    """Show the list, or only its rows for a swap."""
    filters = read_filters(request.http.GET)
    options = list_options(request.http)
    try:
        context = _rows(request, filters, options)
        problem = None
    except InvalidError as error:
        if request.wants_part:
            raise
        context, problem, filters = {}, error, JobFilter(mine=filters.mine)
    if request.wants_part:
        return request.render("jobs/_rows.html", context)
    if request.replaces_main and not problem and not context["jobs"]:
        # An empty list checks whether it is still empty; input in its fields is not replaced.
        return HttpResponse(status=HTTPStatus.NO_CONTENT)
    context |= {"problem": problem, **_around(request, filters, options)}
    response = request.render("jobs/list.html", context, status=400 if problem else 200)
    options.remember(request.http, response)
    return response


def _rows(request: PageRequest, filters: JobFilter, options: ListOptions) -> dict[str, Any]:
    cursor = request.http.GET.get("cursor")
    if options.order is None and filters.states == {JobState.QUEUED.value}:
        found = page_of_queue(request.viewer, filters, cursor=cursor)
    else:
        order = options.order or JobOrder.NEWEST
        found = page_in_order(request.viewer, filters, order, now=request.now, cursor=cursor)
    return {
        "columns": options.columns,
        "jobs": listed_jobs(request.viewer, found.results, now=request.now),
        "next_cursor": found.next_cursor or "",
        "topic": f"queue:{filters.virtual_cluster}" if filters.virtual_cluster else "overview",
    }


def _around(request: PageRequest, filters: JobFilter, options: ListOptions) -> dict[str, Any]:
    viewer = request.viewer
    # A search has no index: its counts would cost as much as reading every job.
    wanted = replace(filters, states=frozenset())
    by_state = None if filters.text.strip() else counts_by_state(viewer, wanted)
    loose = replace(filters, states=frozenset(), reason="")
    clusters = virtual_cluster_names(viewer)
    people = users_for(viewer).values_list("username", flat=True)[:MOST_PEOPLE]
    query = request.http.GET.urlencode()
    saved = [(view, view.query == query) for view in views_of(viewer)]
    total = None if filters.reason or by_state is None else total_of(filters.states, by_state)
    bar = filter_bar(
        filters,
        by_state=by_state,
        by_reason=counts_by_reason(viewer, loose),
        clusters=clusters,
        people=tuple(people),
        options=options.given,
    )
    return {
        "bar": bar,
        "options": options,
        "heads": options.heads(bar.query),
        "wants_head": options.head("wants", _("Wants"), bar.query),
        "orders": options.orders(bar.query),
        "column_choices": options.choices(bar.query),
        "sorted_jobs": _sorted_part(options, total),
        "saved": saved,
        "is_saved": any(is_on for _, is_on in saved),
        "query": query,
        "link": _link_for_others(request),
        "filtered": filters != JobFilter() or any(options.given.values()),
        "summary": _count_in_words(total),
        "first_cluster": clusters[0] if clusters else "",
        "sample": SAMPLE.format(vc=shlex.quote(clusters[0])) if clusters else "",
    }


def _sorted_part(options: ListOptions, total: int | None) -> int | None:
    """Return the number of sorted jobs if an order may leave out older ones."""
    is_whole = total is not None and total <= SORTED_JOBS
    is_partial = options.order is not None and options.order.is_partial
    return SORTED_JOBS if is_partial and not is_whole else None


def _link_for_others(request: PageRequest) -> str:
    """Return the address of the current list; "mine" becomes the name, for other readers."""
    query = request.http.GET.copy()
    query.pop("cursor", None)
    if query.pop("mine", None) == ["1"]:
        query["user"] = request.viewer.username
    return f"{request.portal_url}{request.http.path}?{query.urlencode()}"


def _count_in_words(total: int | None) -> str:
    return "" if total is None else words.plural(total, "job", "jobs")
