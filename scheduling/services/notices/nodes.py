"""Telling of a node's health; why it is so may name addresses and stays in the portal."""

from datetime import datetime

from scheduling.core.notices import NoticeEvent
from scheduling.services.notices.outbox import put


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
