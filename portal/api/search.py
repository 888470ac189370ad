"""Search by name over jobs, sweeps, virtual clusters, nodes, people and documents."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, TypedDict
from urllib.parse import urlencode

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.addresses import address, job_url, node_url
from portal.api.bodies import From
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from portal.guides import found_in_guides
from scheduling.clusters.queries.names import nodes_named, virtual_clusters_named
from scheduling.jobs.queries.jobs import JobFilter, page_of_jobs, rows_of_jobs
from scheduling.sweeps.queries import sweeps_of
from tenants.errors import InvalidError
from tenants.roles import Permission, scopes_allow
from tenants.selectors import users_for
from tenants.viewers import Viewer

MOST_RESULTS: Final = 6
LONGEST: Final = 80
JOBS_ONLY: Final = "#"
PEOPLE_ONLY: Final = "@"


class ResultOut(TypedDict):
    """A result: its kind, its name, a detail such as its state, and the address of its page."""

    kind: Annotated[str, From("kind", str)]
    id: str
    name: str
    detail: str
    url: str


class SearchOut(TypedDict):
    """The results, by kind."""

    results: list[ResultOut]


class SearchViewSet(ApiViewSet):
    """Search in everything that you may see."""

    collection = "search"
    operations: ClassVar = {
        "list": Op(
            takes=(
                OpenApiParameter(
                    "q",
                    str,
                    required=True,
                    description="Part of a name, or the ID of a job. `#` limits the search to the"
                    " ID of a job, `@` to people.",
                ),
            ),
            answer=SearchOut,
        ),
    }

    def list(self, request: Request) -> Response:
        """Search names, at most 6 results of each kind."""
        text = self.query.text("q").strip()
        if len(text) > LONGEST:
            raise InvalidError(
                f"The text has {len(text)} characters; at most {LONGEST} are possible.",
                field="q",
                value=text,
                remedy="Search for a shorter text.",
            )
        return Response({"results": list(_results(self.viewer, text))})


def _results(viewer: Viewer, text: str) -> Iterator[dict[str, Any]]:
    sees_jobs = scopes_allow(viewer.scopes, Permission.VIEW_JOBS)
    wanted = text.lstrip(JOBS_ONLY + PEOPLE_ONLY).strip()
    if not wanted:
        return
    if text.startswith(PEOPLE_ONLY):
        yield from _people(viewer, wanted)
        return
    if text.startswith(JOBS_ONLY):
        if sees_jobs and wanted.isascii() and wanted.isdecimal() and len(wanted) < 19:
            yield from map(_job, rows_of_jobs(viewer, [int(wanted)]).values())
        return
    if sees_jobs:
        yield from map(_job, _jobs(viewer, wanted))
        for sweep in sweeps_of(viewer).filter(name__icontains=wanted)[:MOST_RESULTS]:
            yield _result(
                "sweep", sweep.pk, sweep.name, f"{sweep.jobs} jobs", address("sweep", sweep.pk)
            )
    for pk, name, tenant in virtual_clusters_named(viewer, wanted, most=MOST_RESULTS):
        url = address("virtual-cluster", pk)
        yield _result("virtual-cluster", pk, name, viewer.name_of(tenant), url)
    for pk, name, state in nodes_named(viewer, wanted, most=MOST_RESULTS):
        yield _result("node", pk, name, state, node_url(pk))
    yield from _people(viewer, wanted)
    for guide, section in found_in_guides(wanted, most=MOST_RESULTS):
        url = f"{address('document', guide.name)}#s{section.number}"
        yield _result("document", guide.name, section.heading or guide.title, guide.title, url)


def _jobs(viewer: Viewer, text: str) -> Iterator[Any]:
    """Return a job of this ID first, then the newest jobs with this text."""
    exact = {}
    if text.isascii() and text.isdecimal() and len(text) < 19:
        exact = rows_of_jobs(viewer, [int(text)])
        yield from exact.values()
    found = page_of_jobs(viewer, JobFilter(text=text), limit=MOST_RESULTS).results
    yield from [row for row in found if row.id not in exact][: MOST_RESULTS - len(exact)]


def _people(viewer: Viewer, text: str) -> Iterator[dict[str, Any]]:
    found = users_for(viewer).filter(username__icontains=text, is_active=True)
    for pk, username, first, last in found.values_list(
        "pk", "username", "first_name", "last_name"
    )[:MOST_RESULTS]:
        url = f"{address('jobs')}?{urlencode({'user': username})}"
        yield _result("person", pk, username, f"{first} {last}".strip(), url)


def _job(row: Any) -> dict[str, Any]:
    detail = f"{row.id} · {row.owner} · {row.virtual_cluster} · {row.shown_state}"
    return _result("job", row.id, row.name, detail, job_url(row.id))


def _result(kind: str, pk: object, name: str, detail: str, url: str) -> dict[str, Any]:
    return {"kind": kind, "id": str(pk), "name": name, "detail": detail, "url": url}
