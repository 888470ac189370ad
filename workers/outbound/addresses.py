"""Where requests to addresses that people have typed may go: never into the house unasked."""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from scheduling.core.messages import sentence
from scheduling.notices.services.addresses import Network, is_allowed, is_in


class RefusedAddressError(Exception):
    """A request may not go there; nothing has been sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one request goes: the name was asked once, and this is what is connected to.

    Attributes:
        host: as it stands in the address, for the certificate and the header.
        ip: to connect to.
        path: with the query.
    """

    host: str
    port: int
    ip: str
    tls: bool
    path: str


def resolve(url: str, allowed: Sequence[Network]) -> Target:
    """Ask for the host's addresses once and choose the one to connect to.

    A host with one address in the house is refused as a whole: it would be a matter of luck where
    the request goes. Without TLS requests go only to networks that an admin allows.

    Raises:
        RefusedAddressError: nothing may be sent there, or the host is not known.
    """
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host = parts.hostname or ""
    port = parts.port or (443 if tls else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise RefusedAddressError(sentence("undelivered-unknown-host")) from None
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    if not addresses:
        raise RefusedAddressError("the host has no address")
    if not all(is_allowed(address, allowed) for address in addresses):
        raise RefusedAddressError(
            "the host is in a private network; an admin may allow it by TESSERA_HOOK_NETWORKS"
        )
    if not tls and not all(is_in(address, allowed) for address in addresses):
        raise RefusedAddressError("without TLS only networks that an admin allows are told")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host=host, port=port, ip=str(addresses[0]), tls=tls, path=path)
