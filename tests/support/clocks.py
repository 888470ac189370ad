"""Chooses the time that callers of services take from the database, and the host's with it."""

from collections.abc import Callable
from datetime import datetime

import pytest
from django.utils import timezone

from tenants import clock


def choose_time(monkeypatch: pytest.MonkeyPatch, now: Callable[[], datetime]) -> None:
    """Let ``now`` tell the time on every database, as if it lay on this host."""
    # One clock for all databases; the process has a single one.
    monkeypatch.setattr(clock, "_has_server", lambda: False)
    monkeypatch.setattr(timezone, "now", now)
