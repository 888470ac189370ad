"""Validation of webhook targets: public addresses, and allowed private networks."""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from scheduling.core.messages import sentence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ASSIGNED: Final = ipaddress.ip_network("2000::/3")
"""Public IPv6 addresses; Python also reads others, such as ``fec0::/10``, as global."""
_SPECIAL: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        # 6to4 and Teredo can reach any other address.
        "2002::/16",
        "2001::/23",
        # Protocol assignments (Python classifies some as global), relays and documentation.
        "192.0.0.0/24",
        "192.88.99.0/24",
        "3fff::/20",
    )
)
"""Networks of IANA's special-purpose registries that ``is_global`` does not refuse."""
_WITHOUT_TLS: Final = sentence("use-https")


def read_networks(text: str) -> tuple[Network, ...]:
    """Parse networks separated by commas, as in ``10.1.0.0/16, ::1``.

    Raises:
        ValueError: a part is not a valid network.
    """
    parts = (part.strip() for part in text.split(","))
    return tuple(ipaddress.ip_network(part, strict=False) for part in parts if part)


def is_allowed(address: Address, allowed: Iterable[Network]) -> bool:
    """Return whether a request may go to an address: it is public, or an admin allows it."""
    plain = getattr(address, "ipv4_mapped", None) or address
    if any(plain.version == net.version and plain in net for net in allowed):
        return True
    if any(plain.version == net.version and plain in net for net in _SPECIAL):
        return False
    if plain.version == _ASSIGNED.version and plain not in _ASSIGNED:
        return False
    return plain.is_global and not plain.is_multicast


def is_in(address: Address, networks: Iterable[Network]) -> bool:
    """Return whether an address is in one of the networks."""
    plain = getattr(address, "ipv4_mapped", None) or address
    return any(plain.version == net.version and plain in net for net in networks)


def refusal(url: str, allowed: Sequence[Network]) -> str:
    """Return the remedy for a URL whose scheme or literal address is not allowed; else empty.

    Each delivery resolves and checks host names; this function does not.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" and not allowed:
        return _WITHOUT_TLS
    found = _typed(parts.hostname or "")
    if not all(is_allowed(address, allowed) for address in found):
        return sentence("use-public-host")
    if parts.scheme != "https" and not all(is_in(address, allowed) for address in found):
        return _WITHOUT_TLS
    return ""


def _typed(host: str) -> tuple[Address, ...]:
    """Return the addresses of a literal host without a DNS query; empty for a host name."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return (ipaddress.ip_address("127.0.0.1"),)
    try:
        return (ipaddress.ip_address(name),)
    except ValueError:
        pass
    try:
        # Resolvers also accept these forms: 127.1, 0x7f000001, 2130706433.
        return (ipaddress.ip_address(socket.inet_aton(name)),)
    except (OSError, UnicodeError):
        return ()
