"""Base of all pages with data: viewer, time, facts of the frame, and cached parts."""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import wraps
from http import HTTPStatus
from threading import Lock
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils.timezone import get_current_timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST
from django_htmx.middleware import HtmxDetails

from portal.api.errors import problem
from portal.i18n import Name
from portal.web import errors
from portal.web.components import words
from portal.web.errors import failing_sentences
from portal.web.frame import Frame, set_frame
from scheduling.clusters.queries.cluster import at_a_glance
from scheduling.rounds.queries import ticker
from tenants.announcements import announcements_now
from tenants.audit import bind_actor
from tenants.clock import database_now
from tenants.errors import DomainError
from tenants.models import User
from tenants.roles import Permission
from tenants.selectors import viewer_of
from tenants.viewers import Viewer

MAIN: Final = "main"
"""The id of the main content, below the head of every page."""

_PAGES: Final = {
    HTTPStatus.FORBIDDEN: errors.forbidden,
    HTTPStatus.NOT_FOUND: errors.not_found,
}
PageView = Callable[..., HttpResponseBase]
KEPT: Final = 64
KEPT_FOR: Final = timedelta(seconds=10)
_VERSION: Final = re.compile(r"[0-9]{10,20}")
_KNOWN: Final[OrderedDict[Hashable, tuple[datetime, HttpResponse]]] = OrderedDict()
_LOCK: Final = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request for a page by a signed-in user.

    Attributes:
        http: Django's request.
        viewer: read once; passed to selectors and services.
        now: one instant for the whole page.
    """

    http: HttpRequest
    viewer: Viewer
    now: datetime

    @property
    def htmx(self) -> HtmxDetails:
        """Return htmx's details of the request."""
        details: HtmxDetails = self.http.htmx  # type: ignore[attr-defined]
        return details

    @property
    def wants_part(self) -> bool:
        """Return whether to render a part for a swap instead of a whole page."""
        return bool(self.htmx) and not self.htmx.boosted and not self.replaces_main

    @property
    def replaces_main(self) -> bool:
        """Return whether a swap requests the whole page, to replace its content below the head."""
        return bool(self.htmx) and self.htmx.target == MAIN

    @property
    def portal_url(self) -> str:
        """Return ``https://host`` of this portal, as the client has reached it."""
        return self.http.build_absolute_uri("/").rstrip("/")

    def render(
        self,
        template: str,
        context: dict[str, Any] | None = None,
        *,
        status: int = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
    ) -> HttpResponse:
        """Render the template; ``now`` and ``viewer`` are in its context.

        A whole page queries the database for the frame's facts; a part does not.
        """
        if not self.wants_part:
            set_frame(self.http, frame_of(self.viewer, self.now))
        known = {"now": self.now, "viewer": self.viewer, **(context or {})}
        response = render(self.http, template, known, status=status)
        # The same address returns a page or a part of it.
        response.headers["Vary"] = "Cookie, HX-Request"
        response.headers["Cache-Control"] = "private, no-store"
        for name, value in (headers or {}).items():
            response.headers[name] = value
        return response


def page(view: PageView) -> PageView:
    """Decorate ``view(page: PageRequest, ...)`` as a view; only for signed-in users.

    Domain errors become pages (403, 404, 400), or problem documents for parts and scripts.
    """

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return _sign_in(request)
        asked = page_request(request)
        try:
            return view(asked, *args, **kwargs)
        except DomainError as error:
            return _refusal(asked, error)

    return answer


def posts_from(name: str) -> Callable[[PageView], PageView]:
    """Restrict a view of ``page`` to POST, and redirect other requests to its form.

    Such requests follow a new sign-in, or use copied addresses.

    Args:
        name: name of the page with the form; its address takes the first argument of this one's,
            or none.
    """

    def make(view: PageView) -> PageView:
        @wraps(view)
        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method in {"GET", "HEAD"}:
                return HttpResponseRedirect(_form_address(name, kwargs))
            posted: HttpResponseBase = require_POST(view)(request, *args, **kwargs)
            return posted

        return answer

    return make


def _form_address(name: str, known: dict[str, Any]) -> str:
    try:
        return reverse(name, kwargs=dict(list(known.items())[:1]))
    except NoReverseMatch:
        return reverse(name)


def page_request(request: HttpRequest) -> PageRequest:
    """Return the typed request of a signed-in user."""
    user = request.user
    if not isinstance(user, User):
        raise TypeError("page_request is for signed-in users")
    viewer = viewer_of(user)
    bind_actor(viewer)
    return PageRequest(http=request, viewer=viewer, now=database_now())


def frame_of(viewer: Viewer, now: datetime) -> Frame:
    """Load the facts of the frame in three queries."""
    glance = at_a_glance(viewer)
    seconds = settings.TESSERA.round_seconds
    rounds = ticker(viewer, now=now, round_seconds=seconds)
    hidden = frozenset() if viewer.can_somewhere(Permission.READ_AUDIT) else {"audit"}
    return Frame(
        scope=_scope(viewer),
        counts={"jobs": glance.live_jobs},
        flags={"nodes": glance.nodes_in_trouble} if glance.nodes_in_trouble else {},
        hidden=frozenset(hidden),
        rounds=rounds.ticks,
        round_age_seconds=rounds.age_seconds,
        round_seconds=seconds,
        announcements=announcements_now(viewer, now=now),
        may_announce=viewer.can(Permission.ANNOUNCE),
        failing=failing_sentences(viewer),
    )


def _scope(viewer: Viewer) -> str:
    if viewer.is_cluster_admin:
        return _("cluster admin")
    names = sorted(viewer.name_of(tenant_id) for tenant_id in viewer.roles)
    return (
        Name(names[0])
        if len(names) == 1
        else (words.plural(len(names), "tenant", "tenants") if names else _("no tenant"))
    )


def _sign_in(request: HttpRequest) -> HttpResponseBase:
    if request.htmx or _wants_json(request):  # type: ignore[attr-defined]
        return _problem("not-authenticated", _("Sign in"), HTTPStatus.UNAUTHORIZED)
    return redirect_to_login(request.get_full_path())


def _refusal(asked: PageRequest, error: DomainError) -> HttpResponse:
    if asked.wants_part or _wants_json(asked.http):
        faults = [fault.as_dict() for fault in error.errors]
        return _retried(_problem(error.code, error.title, error.status, faults), error)
    if error.retry_after is not None:
        return _retried(errors.busy(asked.http, error), error)
    set_frame(asked.http, frame_of(asked.viewer, asked.now))
    return _PAGES.get(HTTPStatus(error.status), errors.bad_request)(asked.http, error)


def _retried(response: HttpResponse, error: DomainError) -> HttpResponse:
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _wants_json(request: HttpRequest) -> bool:
    accepted = request.headers.get("Accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def _problem(
    code: str, title: str, status: int, faults: list[dict[str, Any]] | None = None
) -> JsonResponse:
    return JsonResponse(
        problem(code, title, status, faults),
        status=status,
        content_type="application/problem+json",
    )


def once_a_version(
    asked: PageRequest, look: Hashable, make: Callable[[], HttpResponse]
) -> HttpResponse:
    """Return the cached or new result of ``make`` for viewers with the same rights.

    A page sends the version of the message for which it fetches a part (``v``). Entries expire
    when viewers have finished their spread fetches. Use of devices, waits and names change without
    a new version, so older entries would be outdated.

    Args:
        asked: the request; without a version it is not cached.
        look: cache key besides the rights, language, zone and version.
        make: renders the part; nothing in it may be about the viewer as a person.
    """
    version = asked.http.GET.get("v", "")
    if not _VERSION.fullmatch(version):
        return make()
    viewer = _rights_of(asked.viewer)
    shown = get_language(), get_current_timezone()
    key = (version, look, shown, viewer, frozenset(viewer.roles.items()))
    known = _kept(key, asked.now)
    if known is None:
        known = make()
        _keep(key, known, asked.now)
    return HttpResponse(known.content, headers=dict(known.headers))


def _kept(key: Hashable, now: datetime) -> HttpResponse | None:
    with _LOCK:
        made_at, known = _KNOWN.get(key, (now, None))
    return None if _is_old(made_at, now) else known


def _keep(key: Hashable, made: HttpResponse, now: datetime) -> None:
    with _LOCK:
        _KNOWN[key] = now, made
        _KNOWN.move_to_end(key)
        while len(_KNOWN) > KEPT or _is_old(next(iter(_KNOWN.values()))[0], now):
            _KNOWN.popitem(last=False)


def _is_old(made_at: datetime, now: datetime) -> bool:
    """Return whether a part has expired, or was cached before the clock was set back."""
    return abs(now - made_at) >= KEPT_FOR


def _rights_of(viewer: Viewer) -> Viewer:
    """Return the viewer without personal fields, so that viewers with equal rights are equal."""
    return replace(viewer, user_id=None, username="", token_prefix="")
