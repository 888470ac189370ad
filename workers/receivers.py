"""Receivers of the signals of ``scheduling`` and ``workers``."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from scheduling.signals import orders_changed
from workers.services.telemetry import keep_current
from workers.signals import telemetry_seen
from workers.waking import wake


def connect() -> None:
    """Connect the receivers; idempotent."""
    orders_changed.connect(wake_for_orders, dispatch_uid="workers.wake_for_orders")
    telemetry_seen.connect(keep_telemetry, dispatch_uid="workers.keep_telemetry")


def wake_for_orders(*, node_ids: frozenset[int], **_: Any) -> None:
    """Wake the services that manage these nodes."""
    wake(node_ids)


def keep_telemetry(*, node_id: int, at: datetime, reading: Mapping[str, Any], **_: Any) -> None:
    """Cache the current reading of a node."""
    keep_current(node_id=node_id, at=at, reading=reading)
