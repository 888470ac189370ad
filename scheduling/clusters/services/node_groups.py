"""Racks and pools of nodes, from their labels ``rack`` and ``pool``."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from scheduling.clusters.models import Node
from scheduling.clusters.services.topology import append_version
from scheduling.core.cells import ClusterSpec
from scheduling.topology.current import current_topology

KINDS: Final = ("rack", "pool")


def follow_labels(*, user_id: int | None, now: datetime) -> None:
    """Append a version of the topology if racks or pools differ; call it inside ``in_turn``.

    Cells, addresses and guarantees do not change, and running jobs continue.

    Raises:
        TopologyMovedError: another edit changed the topology.
    """
    topology = current_topology()
    spec = with_groups(topology.spec)
    if topology.version and spec is not topology.spec:
        append_version(
            before=topology.version,
            spec=spec,
            reason="racks and pools of nodes",
            user_id=user_id,
            now=now,
        )


def with_groups(spec: ClusterSpec) -> ClusterSpec:
    """Return the cells with the racks and pools of the labels; the same object if equal.

    Racks of equal names in different pools are different racks.
    """
    rows = Node.objects.filter(removed_at=None).exclude(labels={}).order_by("name")
    groups: dict[str, dict[str, str]] = {}
    for name, labels in rows.values_list("name", "labels"):
        for kind, group in _groups_of(labels).items():
            groups.setdefault(kind, {})[name] = group
    return spec if groups == spec.groups else replace(spec, groups=groups)


def _groups_of(labels: Mapping[str, str]) -> dict[str, str]:
    named = {kind: str(labels[kind]) for kind in KINDS if labels.get(kind)}
    if len(named) == len(KINDS):
        named["rack"] = f"{named['pool']}/{named['rack']}"
    return named
