"""Addresses of Redis: one server, or a master that Sentinels know, with or without TLS."""

import re
import ssl
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

SENTINEL_PORT: Final = 26379
SENTINEL_SECONDS: Final = 2.0
"""Timeout of one Sentinel; then the next one is asked."""
_MASTER: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_SENTINEL_OPTIONS: Final = frozenset({"db", "sentinel_password", "ssl_ca_certs"})
PLAIN_SCHEMES: Final = ("redis", "rediss", "unix", "memory")


class InvalidRedisAddressError(ValueError):
    """The address cannot be used; the message does not repeat it, since it may have a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelMaster:
    """A master behind Sentinels, from ``sentinel://:PASSWORD@host:port,host:port/NAME``.

    Attributes:
        sentinels: hosts and ports.
        name: name of the master.
        password, username: credentials of Redis.
        sentinel_password: password of the Sentinels; empty without one.
        database: number of the database.
        is_tls: ``sentinels://``: TLS to Redis and to Sentinels.
        ca: file of the certificate authority; the system's authorities without it.
    """

    sentinels: tuple[tuple[str, int], ...]
    name: str
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)
    database: int = 0
    is_tls: bool = False
    ca: str = ""

    @property
    def tls_options(self) -> dict[str, Any]:
        """Return options of redis-py for TLS; empty without TLS."""
        if not self.is_tls:
            return {}
        return {"ssl_cert_reqs": "required", **({"ssl_ca_certs": self.ca} if self.ca else {})}

    @property
    def sentinel_options(self) -> dict[str, Any]:
        """Return options of connections to Sentinels."""
        found: dict[str, Any] = {
            "socket_timeout": SENTINEL_SECONDS,
            "socket_connect_timeout": SENTINEL_SECONDS,
        }
        if self.sentinel_password:
            found["password"] = self.sentinel_password
        return found | ({"ssl": True, **self.tls_options} if self.is_tls else {})

    @property
    def server_options(self) -> dict[str, Any]:
        """Return options of connections to the master."""
        found: dict[str, Any] = {"db": self.database}
        if self.username:
            found["username"] = self.username
        if self.password:
            found["password"] = self.password
        return found | ({"ssl": True, **self.tls_options} if self.is_tls else {})


def sentinel_master(url: str) -> SentinelMaster | None:
    """Return the master of a Sentinel address; None for other valid addresses.

    Raises:
        InvalidRedisAddressError: the address is not valid.
    """
    parts = urlsplit(url)
    if parts.scheme in PLAIN_SCHEMES:
        return None
    if parts.scheme not in ("sentinel", "sentinels"):
        raise InvalidRedisAddressError(
            "use redis://, rediss://, unix:///path, sentinel://HOST:PORT,HOST:PORT/MASTER or "
            "sentinels:// (TLS)"
        )
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    unknown = sorted(options.keys() - _SENTINEL_OPTIONS)
    name, database = parts.path.strip("/"), options.get("db", "0")
    if unknown:
        raise InvalidRedisAddressError(f"unknown options: {', '.join(unknown)}")
    if not _MASTER.fullmatch(name):
        raise InvalidRedisAddressError("it has no name of a master, such as /mymaster")
    if not (database.isdecimal() and len(database) <= 3):
        raise InvalidRedisAddressError("db is not a number")
    return SentinelMaster(
        sentinels=tuple(_host(host) for host in hosts.split(",")),
        name=name,
        username=unquote(username),
        password=unquote(password),
        sentinel_password=options.get("sentinel_password", ""),
        database=int(database),
        is_tls=parts.scheme == "sentinels",
        ca=options.get("ssl_ca_certs", ""),
    )


def _host(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if re.search(r":\d+$", text) else (text, "", "")
    if not host or any(char.isspace() for char in host):
        raise InvalidRedisAddressError("a Sentinel has no host name")
    return host.strip("[]"), int(port or SENTINEL_PORT)


def redis_client(url: str, *, seconds: float) -> "redis.Redis[bytes]":
    """Create a client.

    Args:
        url: the address.
        seconds: timeout of connections and replies.
    """
    timeouts = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
    master = sentinel_master(url)
    if master is None:
        return redis.Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds)
    known = redis.sentinel.Sentinel(
        list(master.sentinels), sentinel_kwargs=master.sentinel_options | timeouts
    )
    found: redis.Redis[bytes] = known.master_for(
        master.name, redis_class=_MasterClient, **master.server_options, **timeouts
    )
    return found


def async_redis_client(url: str, **options: Any) -> "redis.asyncio.Redis[bytes]":
    """Create a client for an event loop, with options of its connections."""
    master = sentinel_master(url)
    if master is None:
        return redis.asyncio.Redis.from_url(url, **options)
    known = redis.asyncio.sentinel.Sentinel(
        list(master.sentinels), sentinel_kwargs=master.sentinel_options
    )
    found: redis.asyncio.Redis[bytes] = known.master_for(
        master.name, redis_class=_AsyncMasterClient, **master.server_options, **options
    )
    return found


class _MasterClient(redis.Redis):  # type: ignore[type-arg]
    """A client that also closes its connections to the Sentinels."""

    def close(self) -> None:
        super().close()
        for sentinel in self.connection_pool.sentinel_manager.sentinels:
            sentinel.close()


class _AsyncMasterClient(redis.asyncio.Redis):  # type: ignore[type-arg]
    """A client for an event loop that also closes its connections to the Sentinels."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)  # type: ignore[misc]
        for sentinel in self.connection_pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def broker_options(url: str) -> dict[str, Any]:
    """Return Celery's settings for the broker, with a socket as ``redis+socket://``."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return {"broker_url": f"redis+socket://{parts.path}"}
    master = sentinel_master(url)
    if master is None:
        return {"broker_url": url} | (
            {"broker_use_ssl": _tls(url)} if parts.scheme == "rediss" else {}
        )
    login = f"{quote(master.username, safe='')}:{quote(master.password, safe='')}@"
    login = login if master.password else ""
    hosts = [f"[{host}]" if ":" in host else host for host, _ in master.sentinels]
    ports = [port for _, port in master.sentinels]
    found: dict[str, Any] = {
        "broker_url": ";".join(
            f"sentinel://{login}{host}:{port}/{master.database}"
            for host, port in zip(hosts, ports, strict=True)
        ),
        "broker_transport_options": {
            "master_name": master.name,
            "sentinel_kwargs": master.sentinel_options,
        },
    }
    if master.is_tls:
        found["broker_use_ssl"] = {
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
            **({"ssl_ca_certs": master.ca} if master.ca else {}),
        }
    return found


def _tls(url: str) -> dict[str, Any]:
    """Return Celery's options for TLS, which it does not read from the address."""
    options = parse_qs(urlsplit(url).query)
    found: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    return found | (
        {"ssl_ca_certs": options["ssl_ca_certs"][-1]} if "ssl_ca_certs" in options else {}
    )


def channel_host(url: str) -> str | dict[str, Any]:
    """Return the address as an entry of ``hosts`` of the channel layer."""
    master = sentinel_master(url)
    if master is None:
        return url
    return {
        "master_name": master.name,
        "sentinels": list(master.sentinels),
        "sentinel_kwargs": master.sentinel_options,
        **master.server_options,
    }
