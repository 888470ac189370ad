"""What people may read of why a node is not ready: addresses and paths are for its admins."""

from typing import Final

from scheduling.core.messages import sentence
from scheduling.enums import NodeState

# Written by transports and the operating system: they may name hosts, ports, users and paths.
_OF_CONTACT: Final = {
    NodeState.SUSPECT: sentence("node-not-answered-while"),
    NodeState.DOWN: sentence("node-not-answer"),
}


def state_reason_for(state: str, reason: str, *, may_manage: bool) -> str:
    """Why a node is in its state.

    Args:
        state: of the node; of those who may not manage nodes, all that a lost contact tells.
        reason: as it is stored. What an admin wrote to hold the node back is for everybody.
        may_manage: the reader may manage nodes.
    """
    if may_manage or not reason:
        return reason
    return _OF_CONTACT.get(NodeState(state), reason)
