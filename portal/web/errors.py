"""Error pages with cause and remedy; 500 works without the database."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views import defaults

from portal.api.errors import plain_problem
from portal.health import HealthPart, failing_parts
from portal.web.frame import ATTRIBUTE, Frame, set_frame
from tenants.errors import DomainError
from tenants.viewers import Viewer

FRAMED: Final = frozenset({"403.html", "404.html"})
"""Error pages with the usual frame for people who are signed in."""


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Render error 400: the request could not be read."""
    return _page(request, HTTPStatus.BAD_REQUEST, "400.html")


def unreadable(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Return 400 before user and host of the request are known."""
    if request.path.startswith("/api/"):
        is_host = isinstance(exception, DisallowedHost)
        remedy = "Use a host name listed in TESSERA_ALLOWED_HOSTS." if is_host else ""
        return plain_problem("bad-request", "The request is not valid", 400, remedy)
    return defaults.bad_request(request, exception or Exception())


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Render error 403: the reader's role does not allow it."""
    return _page(request, HTTPStatus.FORBIDDEN, "403.html")


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Return 404: the page does not exist or is not visible to the reader."""
    return _page(request, HTTPStatus.NOT_FOUND, "404.html")


def busy(request: HttpRequest, error: DomainError) -> HttpResponse:
    """Return a page for a request that may succeed on a later retry."""
    context = {
        "request_id": getattr(request, "request_id", ""),
        "title": error.title,
        "fault": error.errors[0],
        "code": error.code,
    }
    body = render_to_string("busy.html", context, request=request)
    return HttpResponse(body, status=error.status)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Return 403: the form was too old or of a foreign origin."""
    return _page(request, HTTPStatus.FORBIDDEN, "403_csrf.html")


def server_error(request: HttpRequest) -> HttpResponse:
    """Return 500 without request, user or query, so that it always works."""
    if request.path.startswith("/api/"):
        return plain_problem("server-error", "The server failed; see its log", 500)
    context = {"request_id": getattr(request, "request_id", ""), "frame": Frame()}
    body = render_to_string("500.html", context)
    return HttpResponse(body, status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _page(request: HttpRequest, status: HTTPStatus, template: str) -> HttpResponse:
    context = {"request_id": getattr(request, "request_id", ""), "path": request.path}
    if template in FRAMED and getattr(getattr(request, "user", None), "is_authenticated", False):
        context["error_base"] = "base.html"
        if not hasattr(request, ATTRIBUTE):
            set_frame(request, Frame(hidden=frozenset({"audit"})))
    return HttpResponse(render_to_string(template, context, request=request), status=status)


MOST_NAMES: Final = 5

_SENTENCES: Final = {
    ("database", "other-version"): _(
        "The database belongs to another version of Tessera. Stop this version, and install the"
        " one that migrated the database."
    ),
    ("database", "not-migrated"): _(
        "The database lacks tables of this version of Tessera. Run manage.py set_up with this"
        " version."
    ),
    ("broker", "unreachable"): _(
        "Redis does not respond. Jobs start up to 15 s later, and open pages do not update."
        " Check the Redis server and TESSERA_REDIS_URL."
    ),
    ("rounds", "none-yet"): _(
        "No scheduling round has run yet. No job starts. Check the workers of queue `rounds`."
    ),
    ("rounds", "late"): _(
        "Scheduling rounds are late. No new job starts. Check beat and the workers of queue "
        "`rounds`."
    ),
    ("nodes", "not-carried"): _(
        "No node service manages %(names)s. Jobs there continue, but no new job starts."
        " Check the workers of queue `nodes`."
    ),
    ("nodes", "no-node-service"): _(
        "No node service runs. No job starts. Check the workers of queue `nodes`."
    ),
    ("beat", "none-yet"): _(
        "No beat process has run yet. Notifications, usage totals and cleanup are "
        "delayed. Start one."
    ),
    ("beat", "no-beat"): _(
        "No beat process runs. Notifications, usage totals and cleanup are delayed. Start one."
    ),
    ("clock", "clock-skew"): _(
        "The clock of %(names)s differs from the database clock by more than 2 s. Such a host "
        "manages no nodes. Synchronize its clock with NTP."
    ),
    ("storage", "unreachable"): _(
        "The object store does not respond. Jobs continue. Their logs stay on the nodes and are"
        " not readable here, and uploads are refused. Check the object store."
    ),
    ("storage", "denied"): _(
        "The object store refuses the credentials of the portal. Logs stay on the nodes, and"
        " uploads are refused. Check TESSERA_STORAGE_ACCESS_KEY and TESSERA_STORAGE_SECRET_KEY."
    ),
    ("storage", "no-credentials"): _(
        "The portal has no credentials for the object store. Logs stay on the nodes, and uploads"
        " are refused. Set TESSERA_STORAGE_ACCESS_KEY and TESSERA_STORAGE_SECRET_KEY."
    ),
    ("storage", "no-bucket"): _(
        "The bucket of TESSERA_STORAGE does not exist. Logs stay on the nodes, and uploads are"
        " refused. Create the bucket."
    ),
    ("storage", "not-installed"): _(
        "The package boto3 is not installed. Logs stay on the nodes, and uploads are refused."
        " Install requirements/s3.txt."
    ),
    ("disk", "almost-full"): _(
        "The data directory on %(names)s is almost full. When it is full, logs stay on the nodes"
        " and uploads are refused. Free space there, or run manage.py prune."
    ),
}


def failing_sentences(viewer: Viewer) -> tuple[str, ...]:
    """Return a sentence for each failing part: cause, effect and remedy."""
    if not viewer.is_cluster_admin or viewer.bound_tenant_id is not None:
        return ()
    return tuple(_sentence(part) for part in failing_parts() if _key(part) in _SENTENCES)


def _sentence(part: HealthPart) -> str:
    return gettext(_SENTENCES[_key(part)]) % {"names": _names(part.subjects)}


def _key(part: HealthPart) -> tuple[str, str]:
    return part.name, part.detail


def _names(subjects: Sequence[str]) -> str:
    more = len(subjects) - MOST_NAMES
    return ", ".join(subjects[:MOST_NAMES]) + (f" (+{more})" if more > 0 else "")
