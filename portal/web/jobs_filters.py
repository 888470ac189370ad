"""Filters of the list of jobs: read from the address, shown as chips, saved as views."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.i18n import Name, gettext_lazy
from portal.web.components.states import job_state
from portal.web.forms import error_text
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.core.lifecycle import LIVE, TERMINAL, JobState
from scheduling.jobs.queries.jobs import JobFilter
from scheduling.jobs.services.saved import (
    delete_template,
    delete_view,
    save_template,
    save_view,
    templates_of,
)
from tenants.errors import DomainError
from tenants.roles import Permission

KEYS: Final = ("state", "virtual_cluster", "user", "reason", "mine", "q", "order", "columns")
VIEWS: Final = (
    ("", gettext_lazy("All")),
    ("live", gettext_lazy("Active")),
    ("queued", gettext_lazy("Waiting")),
    ("failed", gettext_lazy("Failed")),
    ("ended", gettext_lazy("Ended")),
)
_NAMED: Final = frozenset(("virtual_cluster", "user"))
GROUPS: Final[Mapping[str, frozenset[JobState]]] = {"live": LIVE, "ended": TERMINAL}
MOST_QUERY: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterLink:
    """A link that changes one filter.

    Attributes:
        text: the label.
        url: the list with that filter changed.
        count: jobs behind it, if known.
        on: whether the filter is active.
    """

    text: str
    url: str
    count: int | None = None
    on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """An active filter, and the address of the list without it."""

    name: str
    value: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBar:
    """Everything that the bar above the list shows."""

    views: tuple[FilterLink, ...]
    chips: tuple[Chip, ...]
    states: tuple[FilterLink, ...]
    clusters: tuple[FilterLink, ...]
    people: tuple[FilterLink, ...]
    reasons: tuple[FilterLink, ...]
    mine: FilterLink
    text: str
    kept: tuple[tuple[str, str], ...]
    query: Mapping[str, str]
    clear_url: str


def read_filters(query: QueryDict) -> JobFilter:
    """Read the filters of an address; the selector validates them."""
    states = frozenset(
        name.strip() for value in query.getlist("state") for name in value.split(",") if name
    )
    return JobFilter(
        states=states,
        virtual_cluster=query.get("virtual_cluster", ""),
        user=query.get("user", ""),
        reason=query.get("reason", ""),
        text=query.get("q", ""),
        mine=query.get("mine") == "1",
    )


def filter_bar(
    filters: JobFilter,
    *,
    by_state: Mapping[str, int] | None,
    by_reason: Mapping[str, int],
    clusters: tuple[str, ...],
    people: tuple[str, ...],
    options: Mapping[str, str],
) -> FilterBar:
    """Build the bar for ``filters``.

    Args:
        filters: active filters.
        by_state: jobs by state, with all filters but the state's; None if not counted.
        by_reason: queued jobs by reason code, with all filters but state and reason.
        clusters: virtual clusters to choose from.
        people: user names to choose from.
        options: order and columns in the address, which all links keep.
    """
    query = {**query_of(filters), **options}
    return FilterBar(
        views=_views(query, by_state),
        chips=_chips(query),
        states=_choices(query, "state", _state_names(), by_state),
        clusters=_choices(query, "virtual_cluster", _as_names(clusters)),
        people=_choices(query, "user", _as_names(people)),
        reasons=_choices(query, "reason", {code: code for code in by_reason if code}, by_reason),
        mine=FilterLink(
            text=gettext("Mine"),
            url=url_of({**query, "mine": "" if filters.mine else "1"}),
            on=filters.mine,
        ),
        text=filters.text,
        kept=tuple((key, value) for key, value in query.items() if key != "q" and value),
        query=query,
        clear_url=url_of(options),
    )


def total_of(states: frozenset[str], by_state: Mapping[str, int]) -> int:
    """Return the number of jobs in ``states``, each a state or a group; by default of all."""
    wanted = {each for name in states for each in GROUPS.get(name, (name,))}
    return sum(count for state, count in by_state.items() if not wanted or state in wanted)


def query_of(filters: JobFilter) -> dict[str, str]:
    return {
        "state": ",".join(sorted(filters.states)),
        "virtual_cluster": filters.virtual_cluster,
        "user": filters.user,
        "reason": filters.reason,
        "mine": "1" if filters.mine else "",
        "q": filters.text,
    }


def url_of(query: Mapping[str, str]) -> str:
    made = QueryDict(mutable=True)
    for key in KEYS:
        if query.get(key):
            made[key] = query[key]
    return f"?{made.urlencode(safe=',')}"


def _as_names(given: Iterable[str]) -> dict[str, str]:
    return {name: Name(name) for name in given}


def _state_names() -> dict[str, str]:
    return {state.value: job_state(state.value).word for state in JobState}


def _views(query: Mapping[str, str], by_state: Mapping[str, int] | None) -> tuple[FilterLink, ...]:
    return tuple(
        FilterLink(
            text=text,
            url=url_of({**query, "state": state, "reason": ""}),
            count=None if by_state is None else total_of(frozenset({state} - {""}), by_state),
            on=query["state"] == state,
        )
        for state, text in VIEWS
    )


def _choices(
    query: Mapping[str, str],
    key: str,
    names: Mapping[str, str],
    counts: Mapping[str, int] | None = None,
) -> tuple[FilterLink, ...]:
    return tuple(
        FilterLink(
            text=text,
            url=url_of({**query, key: "" if query[key] == value else value}),
            count=None if counts is None else counts.get(value, 0),
            on=query[key] == value,
        )
        for value, text in names.items()
    )


def _chips(query: Mapping[str, str]) -> tuple[Chip, ...]:
    words = {
        "state": "state",
        "virtual_cluster": gettext("virtual cluster"),
        "user": "user",
        "reason": "reason",
    }
    in_tabs = {state for state, _ in VIEWS}
    return tuple(
        Chip(
            name=name,
            value=Name(query[key]) if key in _NAMED else query[key],
            url=url_of({**query, key: ""}),
        )
        for key, name in words.items()
        if query[key] and not (key == "state" and query[key] in in_tabs)
    )


@require_POST
@page
def save_list_view(request: PageRequest) -> HttpResponse:
    """Save the filters of the list under a name, or delete those of a name."""
    form = request.http.POST
    query = form.get("query", "").removeprefix("?")
    try:
        if "delete" in form:
            word = form["delete"]
            delete_view(viewer=request.viewer, pk=int(word) if _is_number(word) else 0)
            messages.success(request.http, _("View deleted."))
        else:
            name = form.get("name", "")
            saved = save_view(viewer=request.viewer, name=name, query=query, now=request.now)
            messages.success(request.http, _("View %(name)s saved.") % {"name": saved.name})
    except DomainError as error:
        messages.error(request.http, error_text(error))
        # Filters that are too long to store may be too long for an address too.
        query = query if len(query) <= MOST_QUERY else ""
    return HttpResponseRedirect(f"{reverse('jobs')}?{query}" if query else reverse("jobs"))


@require_safe
@page
def job_templates(request: PageRequest) -> HttpResponse:
    """Show the templates that the viewer may use."""
    viewer = request.viewer
    rows = [
        (
            row,
            row.owner_id == viewer.user_id
            or (row.tenant_id is not None and viewer.can(Permission.STOP_ANY_JOB, row.tenant_id)),
        )
        for row in templates_of(viewer)
    ]
    return request.render("submit/templates.html", {"rows": rows})


@posts_from("submit")
@page
def keep_template(request: PageRequest) -> HttpResponseBase:
    """Save the text of the submit page as a template."""
    form = request.http.POST
    try:
        made = save_template(
            viewer=request.viewer,
            name=form.get("template_name", ""),
            text=form.get("yaml", "").replace("\r\n", "\n"),
            tenant=form.get("template_tenant", ""),
            now=request.now,
        )
    except DomainError as error:
        messages.error(request.http, error_text(error))
        return redirect("submit")
    messages.success(request.http, _("Template %(name)s saved.") % {"name": made.name})
    return HttpResponseRedirect(f"{reverse('submit')}?saved={made.pk}")


@posts_from("job-templates")
@page
def drop_template(request: PageRequest) -> HttpResponseBase:
    word = request.http.POST.get("id", "")
    delete_template(viewer=request.viewer, pk=int(word) if _is_number(word) else 0)
    messages.success(request.http, _("Template deleted."))
    return redirect("job-templates")


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 19
