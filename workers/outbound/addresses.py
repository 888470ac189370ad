"""Where requests to addresses that people have typed may go: never into the house unasked."""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ASSIGNED: Final = ipaddress.ip_network("2000::/3")
"""Of IPv6 only these are anybody's in public; others, as ``fec0::/10``, are read as global."""
_TRANSLATED: Final = (ipaddress.ip_network("2002::/16"), ipaddress.ip_network("2001::/32"))
"""Addresses that may lead to any other one."""


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


def read_networks(text: str) -> tuple[Network, ...]:
    """Networks, parted by commas, as ``10.1.0.0/16, ::1``.

    Raises:
        ValueError: one of them is none.
    """
    parts = (part.strip() for part in text.split(","))
    return tuple(ipaddress.ip_network(part, strict=False) for part in parts if part)


def is_allowed(address: Address, allowed: Iterable[Network]) -> bool:
    """Whether a request may go to an address: it is public, or an admin allows it."""
    plain = getattr(address, "ipv4_mapped", None) or address
    if any(plain.version == net.version and plain in net for net in allowed):
        return True
    if any(plain.version == net.version and plain in net for net in _TRANSLATED):
        return False
    if plain.version == _ASSIGNED.version and plain not in _ASSIGNED:
        return False
    return plain.is_global and not plain.is_multicast


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
        raise RefusedAddressError("the host is not known") from None
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    if not addresses:
        raise RefusedAddressError("the host has no address")
    if not all(is_allowed(address, allowed) for address in addresses):
        raise RefusedAddressError(
            "the host is in a private network; an admin may allow it by TESSERA_HOOK_NETWORKS"
        )
    if not tls and not all(_is_in(address, allowed) for address in addresses):
        raise RefusedAddressError("without TLS only networks that an admin allows are told")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host=host, port=port, ip=str(addresses[0]), tls=tls, path=path)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    plain = getattr(address, "ipv4_mapped", None) or address
    return any(plain.version == net.version and plain in net for net in networks)
