"""A signed request to a checked webhook address: bounded time and size, no redirects."""

import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from scheduling.core.messages import sentence
from scheduling.core.notices import sign
from scheduling.notices.services.addresses import Network, is_allowed, is_in
from scheduling.notices.services.deliveries import Outcome, Parcel

CONNECT_SECONDS: Final = 5.0
WHOLE_SECONDS: Final = 15.0
MOST_BYTES: Final = 64 << 10
"""Bytes read of a response; its content is not stored."""
LARGEST_BODY: Final = 64 << 10
GONE: Final = 410
_WORDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (TimeoutError, sentence("undelivered-timeout")),
    (ssl.SSLError, sentence("undelivered-no-tls")),
    (ConnectionRefusedError, sentence("undelivered-connection-refused")),
    (http.client.HTTPException, "the response is not valid HTTP"),
)


class RefusedAddressError(Exception):
    """Requests to this address are not allowed; nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Resolved address of one request.

    Attributes:
        host: host of the URL, for the certificate and the header.
        ip: IP address to connect to.
        path: path with the query.
    """

    host: str
    port: int
    ip: str
    tls: bool
    path: str


def resolve(url: str, allowed: Sequence[Network]) -> Target:
    """Look up the host's addresses once and choose one.

    A host with any internal address is refused; otherwise the chosen address would depend on
    chance. Without TLS requests go only to networks that an admin allows.

    Raises:
        RefusedAddressError: requests to this address are not allowed, or the host is unknown.
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
            "the host is in a private network; an admin may allow it in TESSERA_HOOK_NETWORKS"
        )
    if not tls and not all(is_in(address, allowed) for address in addresses):
        raise RefusedAddressError(
            "without TLS, only networks in TESSERA_HOOK_NETWORKS are allowed"
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host=host, port=port, ip=str(addresses[0]), tls=tls, path=path)


def post(
    parcel: Parcel,
    *,
    networks: Sequence[Network],
    now: Callable[[], float] = time.time,
    whole_seconds: float = WHOLE_SECONDS,
) -> Outcome:
    """Send a delivery to its webhook.

    Args:
        parcel: the delivery.
        networks: private networks that an admin allows.
        now: seconds since the epoch, for the signature.
        whole_seconds: limit for the whole request after the lookup.
    """
    begun = time.monotonic()
    try:
        target = resolve(parcel.url, networks)
        status = _send(target, *_request(parcel, int(now())), whole_seconds=whole_seconds)
    except RefusedAddressError as refused:
        return Outcome(error=str(refused), seconds=time.monotonic() - begun)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Outcome(error=_words(error), seconds=time.monotonic() - begun)
    took = time.monotonic() - begun
    if 200 <= status < 300:
        return Outcome(status=status, seconds=took)
    moved = 300 <= status < 400
    return Outcome(
        status=status,
        error=sentence("undelivered-redirect" if moved else "undelivered-status", status=status),
        seconds=took,
        final=status == GONE,
    )


def _request(parcel: Parcel, timestamp: int) -> tuple[bytes, Mapping[str, str]]:
    body = json.dumps(parcel.body, separators=(",", ":"), ensure_ascii=False).encode()
    if len(body) > LARGEST_BODY:
        raise ValueError(sentence("undelivered-too-large"))
    signature = sign(parcel.secret, message_id=parcel.uid, timestamp=timestamp, body=body)
    return body, {
        "Content-Type": "application/json",
        "User-Agent": "Tessera-Hook/1",
        "webhook-id": parcel.uid,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature,
        "Tessera-Event": parcel.event,
    }


def _send(target: Target, body: bytes, headers: Mapping[str, str], *, whole_seconds: float) -> int:
    """Return the status of the response; the connection is closed at the time limit."""
    connection = _Pinned(target)
    watch = threading.Timer(whole_seconds, connection.cut)
    watch.daemon = True
    watch.start()
    try:
        connection.request("POST", target.path, body=body, headers=dict(headers))
        answer = connection.getresponse()
        answer.read(MOST_BYTES)
        return answer.status
    finally:
        watch.cancel()
        connection.close()
        if connection.was_cut:
            raise TimeoutError


class _Pinned(http.client.HTTPConnection):
    """A connection to the checked address, with the host name for the certificate."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.host, target.port, timeout=CONNECT_SECONDS)
        self.target = target
        self.was_cut = False
        # http.client omits only this default port from the header.
        self.default_port = 443 if target.tls else 80

    def connect(self) -> None:
        """Connect without another lookup of the name."""
        address = (self.target.ip, self.target.port)
        plain = socket.create_connection(address, timeout=CONNECT_SECONDS)
        self.sock = plain
        if self.target.tls:
            self.sock = _tls().wrap_socket(plain, server_hostname=self.target.host)

    def cut(self) -> None:
        """Close the connection from another thread."""
        self.was_cut = True
        if self.sock is not None:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _words(error: Exception) -> str:
    """Return the error as text, without content from the receiver."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    for kind, words in _WORDS:
        if isinstance(error, kind):
            return words
    if isinstance(error, OSError):
        return f"no connection ({error.strerror or type(error).__name__})"
    return str(error)
