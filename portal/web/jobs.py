"""The list of jobs: filters in the address, live rows, bulk stop."""

import shlex
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from portal.web.components import words
from portal.web.jobs_filters import filter_bar, read_filters, total_of
from portal.web.jobs_rows import listed_jobs
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.names import virtual_cluster_names
from scheduling.core.lifecycle import JobState
from scheduling.jobs.queries.jobs import (
    JobFilter,
    counts_by_reason,
    counts_by_state,
    page_of_jobs,
    page_of_queue,
)
from scheduling.jobs.services.saved import views_of
from tenants.errors import InvalidError
from tenants.selectors import users_for

MOST_PEOPLE: Final = 200
LONGEST_REASON: Final = 500
SAMPLE: Final = "./tessera submit -f --vc {vc} --name hello -- sh -c 'seq 5; sleep 2; echo done'"


@require_safe
@page
def jobs(request: PageRequest) -> HttpResponse:
    """Show the list, or only its rows for a swap."""
    filters = read_filters(request.http.GET)
    try:
        context = _rows(request, filters)
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
    context |= {"problem": problem, **_around(request, filters)}
    return request.render("jobs/list.html", context, status=400 if problem else 200)


def _rows(request: PageRequest, filters: JobFilter) -> dict[str, Any]:
    is_queue = filters.states == {JobState.QUEUED.value}
    read = page_of_queue if is_queue else page_of_jobs
    found = read(request.viewer, filters, cursor=request.http.GET.get("cursor"))
    return {
        "jobs": listed_jobs(request.viewer, found.results, now=request.now),
        "next_cursor": found.next_cursor or "",
        "topic": f"queue:{filters.virtual_cluster}" if filters.virtual_cluster else "overview",
    }


def _around(request: PageRequest, filters: JobFilter) -> dict[str, Any]:
    viewer = request.viewer
    # A search has no index: its counts would cost as much as reading every job.
    wanted = replace(filters, states=frozenset())
    by_state = None if filters.text.strip() else counts_by_state(viewer, wanted)
    loose = replace(filters, states=frozenset(), reason="")
    clusters = virtual_cluster_names(viewer)
    people = users_for(viewer).values_list("username", flat=True)[:MOST_PEOPLE]
    query = request.http.GET.urlencode()
    saved = [(view, view.query == query) for view in views_of(viewer)]
    return {
        "bar": filter_bar(
            filters,
            by_state=by_state,
            by_reason=counts_by_reason(viewer, loose),
            clusters=clusters,
            people=tuple(people),
        ),
        "saved": saved,
        "is_saved": any(is_on for _, is_on in saved),
        "query": query,
        "link": _link_for_others(request),
        "filtered": filters != JobFilter(),
        "says": _count_in_words(
            None if filters.reason or by_state is None else total_of(filters.states, by_state)
        ),
        "first_cluster": clusters[0] if clusters else "",
        "sample": SAMPLE.format(vc=shlex.quote(clusters[0])) if clusters else "",
    }


def _link_for_others(request: PageRequest) -> str:
    """Return the address of the current list; "mine" becomes the name, for other readers."""
    query = request.http.GET.copy()
    query.pop("cursor", None)
    if query.pop("mine", None) == ["1"]:
        query["user"] = request.viewer.username
    return f"{request.portal_url}{request.http.path}?{query.urlencode()}"


def _count_in_words(total: int | None) -> str:
    return "" if total is None else words.plural(total, "job", "jobs")
