"""Sets the time that callers of services get from the database, and the host's time."""

from collections.abc import Callable
from datetime import datetime

import pytest
from django.utils import timezone

from tenants import clock


def choose_time(monkeypatch: pytest.MonkeyPatch, now: Callable[[], datetime]) -> None:
    """Use ``now`` as the time of every database, as if it were on this host."""
    # One clock for all databases; the process has a single one.
    monkeypatch.setattr(clock, "_has_server", lambda: False)
    monkeypatch.setattr(timezone, "now", now)
