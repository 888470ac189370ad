"""The card *Start here*: first steps by the rights of the reader, until the reader closes it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.addresses import address
from portal.web.preferences import YEAR_SECONDS
from portal.web.viewing import PageRequest
from tenants.roles import Permission

COOKIE: Final = "tessera_start"
CLOSED: Final = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """A step: a link and the answer that its page gives."""

    title: str
    text: str
    url: str


def first_steps(asked: PageRequest, *, has_nodes: bool = True) -> tuple[FirstStep, ...]:
    """Return the steps for the reader; none if the reader has closed the card."""
    if asked.http.COOKIES.get(COOKIE) == CLOSED:
        return ()
    return tuple(_steps(asked, has_nodes))


def _steps(asked: PageRequest, has_nodes: bool) -> Iterator[FirstStep]:
    viewer = asked.viewer
    if viewer.is_cluster_admin and not has_nodes:
        yield FirstStep(
            title=_("Add a node"),
            text=_("One command or this form. Jobs can start as soon as a node is ready."),
            url=address("node-add"),
        )
    if viewer.can_somewhere(Permission.SUBMIT_JOBS):
        yield FirstStep(
            title=_("Submit a job"),
            text=_("The form contains an example and shows its placement before you submit it."),
            url=address("submit"),
        )
    yield FirstStep(
        title=_("See why a job waits"),
        text=_("Each waiting job has a reason, a start estimate and changes that start it now."),
        url=f"{address('jobs')}?state=queued",
    )
    yield FirstStep(
        title=_("View the last 24 hours"),
        text=_("The timeline shows the jobs on each device, and each preemption."),
        url=f"{address('timeline')}?span=24h",
    )
    yield FirstStep(
        title=_("Compare policies"),
        text=_("A what-if replays past days under another policy, with winners and losers."),
        url=address("policies-what-if"),
    )
    if viewer.is_cluster_admin:
        yield FirstStep(
            title=_("Check the guarantees"),
            text=_("Virtual clusters show guarantee, use, borrowed and lent devices."),
            url=address("virtual-clusters"),
        )
    yield FirstStep(
        title=_("Documentation"),
        text=_("Recipes for jobs, all fields, and the terms of these pages."),
        url=address("documentation"),
    )


@require_POST
def close(request: HttpRequest) -> HttpResponse:
    """Hide the card in this browser."""
    response = HttpResponseRedirect(address("home"))
    response.set_cookie(
        COOKIE,
        CLOSED,
        max_age=YEAR_SECONDS,
        samesite="Lax",
        secure=request.is_secure(),
        httponly=True,
    )
    return response
