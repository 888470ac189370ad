"""Origin check of websockets: own pages with the visitor's cookie, scripts with a token."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from channels.security.websocket import OriginValidator
from django.conf import settings
from django.http.request import split_domain_port, validate_host

Scope: TypeAlias = dict[str, Any]
Application: TypeAlias = Callable[[Scope, Any, Any], Awaitable[None]]
_SCHEMES: Final = ("http", "https")


class OwnOrigin(OriginValidator):  # type: ignore[misc] # Channels has no types
    """Refuses sockets of foreign pages, as Django refuses their forms.

    Browsers always send the page's ``Origin``; a client without it is not a browser. Then cookies
    are ignored, and only a token authenticates.
    """

    def __init__(self, application: Application, trusted: Sequence[str]) -> None:
        """Args: application: the protected application; trusted: origins with their scheme."""
        super().__init__(application, list(trusted))

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass the socket on, without its cookies if it has no origin, or refuse it."""
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
    """Wrap with the origins of these settings: this host, and trusted origins of a proxy."""
    return OwnOrigin(
        application, [origin.replace("*", "", 1) for origin in settings.CSRF_TRUSTED_ORIGINS]
    )


def _is_of(origin: str, host: str) -> bool:
    """Return whether ``origin`` matches ``host``, and that host is one of ours."""
    scheme, _, where = origin.partition("://")
    domain, _ = split_domain_port(host)
    is_ours = bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)
    return is_ours and scheme in _SCHEMES and where.lower() == host.lower()
