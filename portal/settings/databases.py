"""Databases: SQLite for one machine, PostgreSQL for teams, each with a read-only alias."""

from typing import Any

import dj_database_url


def databases(url: str) -> dict[str, dict[str, Any]]:
    """The aliases ``default`` (writes) and ``snapshot`` (one consistent, read-only view)."""
    default: dict[str, Any] = dict(dj_database_url.parse(url))
    default["ENGINE"] = default["ENGINE"].replace("django.db.backends", "tenants.engines")
    if default["ENGINE"].endswith("sqlite3"):
        return _sqlite(default)
    return _postgresql(default)


def _sqlite(default: dict[str, Any]) -> dict[str, dict[str, Any]]:
    # An accepted job survives a power cut: synchronous=FULL. One writer at a time: IMMEDIATE takes
    # the write lock at the start, so that a transaction never fails half-way for want of it.
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


def _postgresql(default: dict[str, Any]) -> dict[str, dict[str, Any]]:
    given = default.get("OPTIONS", {})
    # Some moments are read as text (``scheduling.live_jobs``), whatever the server writes else.
    as_text = f"{given.get('options', '')} -c DateStyle=ISO".strip()
    read_only = (
        "-c default_transaction_isolation=repeatable\\ read -c default_transaction_read_only=on"
    )
    default = {
        **default,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {**given, "options": as_text},
    }
    snapshot = {
        **default,
        "OPTIONS": {**given, "options": f"{as_text} {read_only}"},
        "TEST": {"MIRROR": "default"},
    }
    return {"default": default, "snapshot": snapshot}
