"""What the workers do when scheduling has news."""

from typing import Any

from scheduling.signals import orders_changed
from workers.waking import wake


def connect() -> None:
    """Receive the signals of the room below; doing it again changes nothing."""
    orders_changed.connect(wake_for_orders, dispatch_uid="workers.wake_for_orders")


def wake_for_orders(*, node_ids: frozenset[int], **_: Any) -> None:
    """Wake the services that carry these nodes."""
    wake(node_ids)
