"""Whose word about the caller is taken: that of trusted proxies alone."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from portal import settings as base
from portal.serving import behind_proxies


def seen(client: str, *, trusted: tuple[str, ...] = (), https: bool = False) -> tuple[str, str]:
    """The address and the scheme that the application is told."""
    found: dict[str, Any] = {}

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        found.update(scope)

    settings = replace(base.TESSERA, trusted_proxies=trusted, https=https)
    scope = {
        "type": "http",
        "scheme": "http",
        "client": (client, 1),
        "headers": [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-proto", b"https")],
    }
    asyncio.run(behind_proxies(application, settings)(scope, None, None))
    return found["client"][0], found["scheme"]


@pytest.mark.parametrize(
    ("client", "trusted", "address"),
    [
        ("127.0.0.1", (), "127.0.0.1"),
        ("127.0.0.1", ("10.0.0.0/8",), "127.0.0.1"),
        ("127.0.0.1", ("127.0.0.1/32",), "203.0.113.9"),
        ("10.1.2.3", ("10.0.0.0/8", "::1/128"), "203.0.113.9"),
    ],
)
def test_only_trusted_proxies_say_who_calls(
    client: str, trusted: tuple[str, ...], address: str
) -> None:
    told = seen(client, trusted=trusted)

    assert told == (address, "https" if address != client else "http")


def test_a_portal_that_is_reached_by_https_knows_it_whatever_a_proxy_says() -> None:
    assert seen("10.1.2.3", https=True) == ("10.1.2.3", "https")
