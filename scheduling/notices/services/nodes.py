"""Telling of a node's health; why it is so may name addresses and stays in the portal."""

from collections.abc import Mapping
from datetime import datetime

from scheduling.core.notices import NoticeEvent
from scheduling.notices.services.outbox import put


def put_node_state(*, node_id: int, name: str, state: str, now: datetime) -> None:
    """Write down that a node has come into a state, in the caller's transaction."""
    put(
        event=NoticeEvent(f"node.{state}"),
        facts={
            "node": {"id": node_id, "name": name, "state": state},
            "path": f"/nodes/{node_id}/",
        },
        now=now,
    )


def put_node_disk(*, node_id: int, name: str, facts: Mapping[str, int], now: datetime) -> None:
    """Write down that a node's disk is almost full, in the caller's transaction.

    Args:
        node_id: which node.
        name: its name.
        facts: ``disk_free_bytes`` and ``disk_total_bytes``.
        now: when.
    """
    node = {"id": node_id, "name": name, **facts}
    put(event=NoticeEvent.NODE_DISK, facts={"node": node, "path": f"/nodes/{node_id}/"}, now=now)


def put_host_disk(*, name: str, facts: Mapping[str, int], now: datetime) -> None:
    """Write down that the data directory of a host is almost full, as ``put_node_disk`` does."""
    put(event=NoticeEvent.HOST_DISK, facts={"host": {"name": name, **facts}}, now=now)
