"""Access to the websocket: origins of pages, syntax of topics, groups and rights."""

import re
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias

from channels.security.websocket import OriginValidator
from django.conf import settings
from django.http.request import split_domain_port, validate_host

from scheduling.clusters.queries.virtual_clusters import virtual_cluster_for
from scheduling.jobs.queries.events import require_visible_job
from tenants.errors import DomainError
from tenants.roles import Permission
from tenants.viewers import Viewer

Scope: TypeAlias = dict[str, Any]
Application: TypeAlias = Callable[[Scope, Any, Any], Awaitable[None]]
_SCHEMES: Final = ("http", "https")
_JOB: Final = re.compile(r"job:([0-9]{1,18})")
_QUEUE: Final = re.compile(r"queue:(\S.{0,62})")
_LOG: Final = re.compile(r"log:([0-9]{1,18}):([a-z][a-z0-9-]{0,31}):([0-9]{1,6})")


class OwnOrigin(OriginValidator):  # type: ignore[misc] # Channels has no types
    """Refuses websockets from pages of other origins, as Django refuses their forms.

    Browsers always send the page's ``Origin``; a client without it is not a browser. The server
    then ignores cookies and accepts only a token.
    """

    def __init__(self, application: Application, trusted: Sequence[str]) -> None:
        """Store the protected application and the trusted origins, each with its scheme."""
        super().__init__(application, list(trusted))

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Accept a socket of a trusted origin; without an origin, ignore its cookies."""
        headers = dict(scope["headers"])
        if b"origin" not in headers:
            kept = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
            await self.application({**scope, "headers": kept}, receive, send)
        elif _is_of(
            headers[b"origin"].decode("latin-1"), headers.get(b"host", b"").decode("latin-1")
        ):
            await self.application(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def own_origin(application: Application) -> OwnOrigin:
    """Wrap an application with a check for this host and the trusted origins of a proxy."""
    return OwnOrigin(
        application, [origin.replace("*", "", 1) for origin in settings.CSRF_TRUSTED_ORIGINS]
    )


def _is_of(origin: str, host: str) -> bool:
    """Return whether ``origin`` matches ``host``, and ``host`` is an allowed host."""
    scheme, _, where = origin.partition("://")
    domain, _ = split_domain_port(host)
    is_ours = bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)
    return is_ours and scheme in _SCHEMES and where.lower() == host.lower()


class Everywhere(StrEnum):
    """Topics that cover the whole cluster, so that they contain no names."""

    OVERVIEW = "overview"
    NODES = "nodes"
    ROUNDS = "rounds"


class RefusedTopicError(Exception):
    """The topic does not exist, or the viewer has no right to it; the error is the same."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic not found, or you may not subscribe to it: {topic}")
        self.topic = topic


def overview_group() -> str:
    return "live.overview"


def nodes_group() -> str:
    return "live.nodes"


def rounds_group() -> str:
    return "live.rounds"


def queue_group(virtual_cluster_id: int) -> str:
    return f"live.queue.{virtual_cluster_id}"


def job_group(job_id: int) -> str:
    return f"live.job.{job_id}"


def log_group(job_id: int, role: str, rank: int) -> str:
    return f"live.log.{job_id}.{role}.{rank}"


def group_for(topic: str, viewer: Viewer) -> str:
    """Return the group of ``topic`` after a check of the viewer's rights (one query).

    Raises:
        RefusedTopicError: the topic does not exist, or the viewer has no right to it.
    """
    try:
        group = _group(topic, viewer)
    except DomainError:
        group = None
    if group is None:
        raise RefusedTopicError(topic)
    return group


def job_of_log(topic: str) -> int | None:
    """Return the job ID of a log topic, or None for other topics."""
    match = _LOG.fullmatch(topic)
    return int(match[1]) if match else None


def _group(topic: str, viewer: Viewer) -> str | None:
    if topic in set(Everywhere):
        viewer.require(Permission.VIEW_CLUSTER)
        return f"live.{topic}"
    if match := _JOB.fullmatch(topic):
        require_visible_job(viewer, int(match[1]))
        return job_group(int(match[1]))
    if match := _LOG.fullmatch(topic):
        require_visible_job(viewer, int(match[1]))
        return log_group(int(match[1]), match[2], int(match[3]))
    if match := _QUEUE.fullmatch(topic):
        return queue_group(virtual_cluster_for(viewer, match[1]).pk)
    return None
