"""Databases, broker, channel layer and mail server, each from one address."""

from typing import Any, Final
from urllib.parse import unquote, urlsplit

import dj_database_url

IDLE_SECONDS: Final = 10.0
"""Default limit for a transaction that waits for its process."""
SNAPSHOT_IDLE_SECONDS: Final = 60.0
"""Least limit for read-only transactions: they compute between queries and lock no row."""
PROBES: Final = {"idle": 5, "interval": 2, "count": 3}
"""TCP keepalives: seconds of silence, seconds between probes, unanswered probes."""
UNACKNOWLEDGED_MS: Final = 11_000
CONNECT_SECONDS: Final = 10
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
    default: dict[str, Any] = dict(dj_database_url.parse(url))
    default["ENGINE"] = default["ENGINE"].replace("django.db.backends", "tenants.engines")
    if default["ENGINE"].endswith("sqlite3"):
        return _sqlite(default)
    return _postgresql(default, idle_seconds)


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
        "OPTIONS": {**given, "options": " ".join(filter(None, (*reading, read_only)))},
        "TEST": {"MIRROR": "default"},
    }
    return {"default": default, "snapshot": snapshot}


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


def broker_url(redis_url: str) -> str:
    """Return the address in Celery's spelling; a socket becomes ``redis+socket://``."""
    parts = urlsplit(redis_url)
    if parts.scheme == "unix":
        return f"redis+socket://{parts.path}"
    return redis_url


def channel_layers(redis_url: str) -> dict[str, Any]:
    """Return channel layers over Redis pub/sub: messages are not stored; pages refetch."""
    if urlsplit(redis_url).scheme == "memory":
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [redis_url], "prefix": "tessera"},
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
