"""The SSH key that each node accepts, while the control plane's key is being replaced."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from scheduling.clusters.models import Node
from tenants.audit import Actor
from tenants.keyring import SshKey
from tenants.services.keys import drop_ssh_keys
from workers.models import NodeKey
from workers.services.node_reports import NodeReport

RETRY_AFTER: Final = timedelta(seconds=30)
MOST_CAUSE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReplaced(NodeReport):
    """A node accepts only the new key, or the replacement failed for ``cause``."""

    public: str
    cause: str = ""

    def write(self, now: datetime) -> None:
        """Store the key of the node, or the cause."""
        NodeKey.objects.update_or_create(
            node_id=self.node_id,
            defaults={"public": self.public, "cause": self.cause[:MOST_CAUSE], "at": now},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingNode:
    """A node that does not have the new key yet.

    Attributes:
        contact: state of its connection.
        cause: reason of the last failed attempt; empty without one.
    """

    name: str
    contact: str
    cause: str


def nodes_to_replace(
    carried: Collection[int], keys: Sequence[SshKey], *, now: datetime
) -> frozenset[int]:
    """Return the managed nodes without the first key whose next attempt is due."""
    if len(keys) < 2 or not carried:
        return frozenset()
    rows = NodeKey.objects.filter(node_id__in=list(carried), public=keys[0].public)
    settled = {row.node_id for row in rows if not row.cause or row.at > now - RETRY_AFTER}
    return frozenset(carried) - settled


def pending_nodes(public: str) -> list[PendingNode]:
    """Return the nodes that do not have this key yet, by name."""
    done = dict(NodeKey.objects.filter(public=public).values_list("node_id", "cause"))
    nodes = Node.objects.exclude(host="").order_by("name")
    return [
        PendingNode(name=name, contact=contact, cause=done.get(pk, ""))
        for pk, name, contact in nodes.values_list("pk", "name", "contact")
        if done.get(pk) != ""
    ]


def drop_replaced_keys(keys: Sequence[SshKey]) -> bool:
    """Delete the old keys if every node has the first one; return whether that is so."""
    if len(keys) < 2:
        return True
    if pending_nodes(keys[0].public):
        return False
    drop_ssh_keys([key.public for key in keys[1:]], actor=Actor.system("node service"))
    return True
