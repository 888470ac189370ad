"""Rules and facts of storages, for submits, rounds and preparations of runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models.fields.json import KT

from scheduling.clusters.models import Node, Storage
from scheduling.core.storages import StorageFacts, StorageRule
from tenants.compiled_sql import CompiledQuery
from tessera.storage import NOT_MOUNTED, is_nfs

ENGINE: Final = "mounted-by-engine"
"""Cause code: the node has not mounted an export, but its container engine can mount it."""

_COLUMNS: Final = (
    "name",
    "source",
    "mount",
    "writable",
    "checkpoints",
    "tenants",
    "vcs",
    "defaults",
)
# Each submit and each round reads the storages.
_STORAGES: Final = CompiledQuery(lambda _: Storage.objects.order_by("name").values_list(*_COLUMNS))


def storage_rules(using: str = "default") -> tuple[StorageRule, ...]:
    """Return the rules of all storages, by name, in one query."""
    return tuple(
        rule_of(Storage.from_db(using, _COLUMNS, row)) for row in _STORAGES.values(using=using)
    )


def rule_of(row: Storage) -> StorageRule:
    return StorageRule(
        name=row.name,
        source=row.source,
        mount=row.mount,
        writable=row.writable,
        checkpoints=row.checkpoints,
        tenants=frozenset(row.tenants),
        vcs=frozenset(row.vcs),
        defaults=frozenset(row.defaults),
    )


def storage_facts(using: str, vcs: Mapping[int, int]) -> dict[str, StorageFacts]:
    """Return the facts of all storages by name; one query if there are no storages.

    Args:
        using: database alias.
        vcs: tenant of each virtual cluster, by ID.
    """
    rules = storage_rules(using)
    nodes = node_probes(using) if rules else []
    return {
        rule.name: StorageFacts(
            vcs=frozenset(vc for vc, tenant in vcs.items() if rule.serves(tenant, vc)),
            nodes=frozenset(node.name for node in nodes if node.cause_of(rule.source) == ""),
            by_engine=frozenset(
                node.name for node in nodes if node.cause_of(rule.source) == ENGINE
            ),
        )
        for rule in rules
    }


@dataclass(frozen=True, slots=True)
class NodeProbes:
    """The probes of a node, and whether its container engine can mount exports."""

    name: str
    probes: Mapping[str, Mapping[str, Any]]
    can_mount: bool

    def cause_of(self, source: str) -> str | None:
        """Return the cause why the node cannot use a source; None before its probe."""
        found = self.probes.get(source)
        if found is None:
            return None
        cause = str(found.get("cause", ""))
        return ENGINE if cause == NOT_MOUNTED and self.can_mount else cause


def node_probes(using: str) -> list[NodeProbes]:
    rows = (
        Node.objects.using(using)
        .filter(removed_at=None)
        .annotate(rootless=KT("inventory__rootless"))
        .order_by("name")
        .values_list("name", "storages", "has_docker", "rootless")
    )
    return [
        NodeProbes(name, probes, has_docker and rootless not in ("1", "true", True, 1))
        for name, probes, has_docker, rootless in rows
    ]


def is_mounted_by_engine(node: Node, source: str) -> bool:
    """Return whether the container engine must mount an export that the node has not mounted."""
    can_mount = node.has_docker and not node.inventory.get("rootless")
    return (
        is_nfs(source)
        and NodeProbes(node.name, node.storages, can_mount).cause_of(source) == ENGINE
    )
