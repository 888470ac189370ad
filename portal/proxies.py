"""Caller address and scheme of requests from trusted proxies (``X-Forwarded-*``)."""

from typing import Any, Final

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from portal.settings.environment import TesseraSettings

_SECURE: Final = {"http": "https", "ws": "wss"}


def behind_proxies(application: Any, settings: TesseraSettings) -> Any:
    """Wrap ``application`` to use the caller's address and scheme from proxy headers.

    ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are read from ``TESSERA_TRUSTED_PROXIES`` alone:
    anybody else could choose the address under which wrong passwords are counted. With
    ``TESSERA_HTTPS=1`` every request counts as HTTPS, whatever the proxy sends.
    """

    async def secure(scope: dict[str, Any], receive: Any, send: Any) -> None:
        scheme = scope.get("scheme", "")
        await application({**scope, "scheme": _SECURE.get(scheme, scheme)}, receive, send)

    served: Any = secure if settings.https else application
    if not settings.trusted_proxies:
        return served
    return ProxyHeadersMiddleware(served, trusted_hosts=list(settings.trusted_proxies))
