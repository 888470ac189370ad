"""Databases, broker, channel layer and mail server, each from one address."""

import re
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import dj_database_url

from workers.redis_address import broker_options, channel_host

IDLE_SECONDS: Final = 10.0
"""Default limit for a transaction that waits for its process."""
SNAPSHOT_IDLE_SECONDS: Final = 60.0
"""Least limit for read-only transactions: they compute between queries and lock no row."""
PROBES: Final = {"idle": 5, "interval": 2, "count": 3}
"""TCP keepalives: seconds of silence, seconds between probes, unanswered probes."""
UNACKNOWLEDGED_MS: Final = 11_000
CONNECT_SECONDS: Final = 10
MANY_HOSTS: Final = "several-hosts"
POSTGRES_PORT: Final = "5432"
VISIBILITY_SECONDS: Final = 600
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s]+)(?::(\d{1,5}))?")
MAIL_PORTS: Final = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
SMTP_BACKEND: Final = "django.core.mail.backends.smtp.EmailBackend"
NO_MAIL_BACKEND: Final = "django.core.mail.backends.dummy.EmailBackend"
MAIL_SECONDS: Final = 10


def databases(url: str, *, idle_seconds: float = IDLE_SECONDS) -> dict[str, dict[str, Any]]:
    """Build the aliases ``default`` (writes) and ``snapshot`` (one consistent, read-only view).

    Args:
        url: address of the database.
        idle_seconds: on PostgreSQL the server ends a transaction after this idle time, which
            releases the locks of a process that is frozen or disconnected.
    """
    default = _parsed(url)
    default["ENGINE"] = default["ENGINE"].replace("django.db.backends", "tenants.engines")
    if default["ENGINE"].endswith("sqlite3"):
        return _sqlite(default)
    return _postgresql(default, idle_seconds)


def _parsed(url: str) -> dict[str, Any]:
    """Parse an address, which may list several PostgreSQL hosts of which one is the primary."""
    login, at, rest = url.rpartition("@")
    hosts, slash, path = (rest if at else url.partition("//")[2]).partition("/")
    if "," not in hosts:
        return dict(dj_database_url.parse(url))
    head = login + at if at else f"{url.partition('//')[0]}//"
    found: dict[str, Any] = dict(dj_database_url.parse(f"{head}{MANY_HOSTS}{slash}{path}"))
    pairs = [_HOST.fullmatch(host) for host in hosts.split(",")]
    if not all(pairs):
        raise ValueError("TESSERA_DATABASE_URL is not valid; list hosts as HOST:PORT,HOST:PORT")
    found["HOST"] = ",".join(pair[1].strip("[]") for pair in pairs if pair)
    found["PORT"] = ",".join(pair[2] or POSTGRES_PORT for pair in pairs if pair)
    found["OPTIONS"] = {"target_session_attrs": "read-write", **found.get("OPTIONS", {})}
    return found


def _sqlite(default: dict[str, Any]) -> dict[str, dict[str, Any]]:
    # An accepted job survives a power cut: synchronous=FULL. One writer at a time: IMMEDIATE
    # acquires the write lock at the start, so that a transaction never fails half-way without it.
    pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
    default = {
        **default,
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": pragmas},
    }
    snapshot = {
        **default,
        "OPTIONS": {
            "transaction_mode": "DEFERRED",
            "timeout": 20,
            "init_command": "PRAGMA query_only=ON;",
        },
        "TEST": {"MIRROR": "default"},
    }
    return {"default": default, "snapshot": snapshot}


def _postgresql(default: dict[str, Any], idle_seconds: float) -> dict[str, dict[str, Any]]:
    url_options = default.get("OPTIONS", {})
    given = {**_client_liveness(), **url_options}
    # The server uses the last value of an option, so the address may override the first ones.
    of_url = url_options.get("options", "")
    # ``scheduling.rounds.snapshot.live_jobs`` parses some times as text in this style.
    always = "-c DateStyle=ISO"
    read_only = (
        "-c default_transaction_isolation=repeatable\\ read -c default_transaction_read_only=on"
    )
    writing = (_server_liveness(idle_seconds), of_url, always)
    reading = (_server_liveness(max(idle_seconds, SNAPSHOT_IDLE_SECONDS)), of_url, always)
    default = {
        **default,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {**given, "options": " ".join(filter(None, writing))},
    }
    snapshot = {
        **default,
        "OPTIONS": {
            **given,
            **_of_snapshots(given),
            "options": " ".join(filter(None, (*reading, read_only))),
        },
        "TEST": {"MIRROR": "default"},
    }
    return {"default": default, "snapshot": snapshot}


def _of_snapshots(given: dict[str, Any]) -> dict[str, str]:
    """Return the choice of the host for snapshots, whose sessions are read-only themselves."""
    if given.get("target_session_attrs") == "read-write":
        return {"target_session_attrs": "primary"}
    return {}


def _client_liveness() -> dict[str, Any]:
    """Return client options that detect a lost server; Unix sockets ignore them."""
    return {
        "connect_timeout": CONNECT_SECONDS,
        **{f"keepalives_{name}": value for name, value in PROBES.items()},
        "tcp_user_timeout": UNACKNOWLEDGED_MS,
    }


def _server_liveness(idle_seconds: float) -> str:
    """Return server options that detect a frozen or disconnected process and release its locks."""
    values = {
        "idle_in_transaction_session_timeout": round(idle_seconds * 1000),
        **{f"tcp_keepalives_{name}": value for name, value in PROBES.items()},
        "tcp_user_timeout": UNACKNOWLEDGED_MS,
    }
    return " ".join(f"-c {name}={value}" for name, value in values.items())


def celery_broker(redis_url: str) -> dict[str, Any]:
    """Return Celery's settings for the broker, by their names in Django's settings."""
    found = broker_options(redis_url)
    options = found.pop("broker_transport_options", {})
    found["broker_transport_options"] = {"visibility_timeout": VISIBILITY_SECONDS, **options}
    return {f"CELERY_{name.upper()}": value for name, value in found.items()}


def channel_layers(redis_url: str) -> dict[str, Any]:
    """Return channel layers over Redis pub/sub: messages are not stored; pages refetch."""
    if urlsplit(redis_url).scheme == "memory":
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [channel_host(redis_url)], "prefix": "tessera"},
        }
    }


def is_mail_url(url: str) -> bool:
    """Return whether an address is a mail server in one of the three forms."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in MAIL_PORTS and bool(parts.hostname) and parts.path in ("", "/")


def mail_settings(url: str) -> dict[str, Any]:
    """Return Django's settings for a mail server; without one no mail is sent."""
    if not url:
        return {"EMAIL_BACKEND": NO_MAIL_BACKEND}
    parts = urlsplit(url)
    return {
        "EMAIL_BACKEND": SMTP_BACKEND,
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": parts.port or MAIL_PORTS[parts.scheme],
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_TLS": parts.scheme == "smtp+starttls",
        "EMAIL_USE_SSL": parts.scheme == "smtps",
        "EMAIL_TIMEOUT": MAIL_SECONDS,
    }
