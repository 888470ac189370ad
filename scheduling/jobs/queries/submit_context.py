"""Reference data for validating submitted jobs, read in a fixed number of queries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS
from django.db.models import CharField, Count, QuerySet, Value

from scheduling.clusters.models import (
    Device,
    DeviceAlias,
    Node,
    PinnedCell,
    PriorityClass,
    VcLimit,
    VcQuota,
    VirtualCluster,
)
from scheduling.common.storages import storage_rules
from scheduling.core.device_types import types_named
from scheduling.core.storages import StorageRule
from tenants.compiled_sql import CompiledQuery
from tenants.roles import Permission
from tenants.viewers import Viewer


class NodeKind(NamedTuple):
    """Capabilities of a group of equal nodes; see ``Node``."""

    isolation: str
    enforces_limits: bool | None
    plain_network: str
    container_network: str
    visible_paths: Sequence[Mapping[str, Any]]


DEFAULT_PRIORITY: Final = 10
_NO_NAME: Final = Value("", output_field=CharField())
_CLUSTER_COLUMNS: Final = ("id", "name", "tenant_id")


def _clusters() -> QuerySet[Any, Any]:
    rows = VirtualCluster.objects.unscoped().filter(archived_at=None).order_by("name")
    return rows.values_list(*_CLUSTER_COLUMNS)


def _nodes() -> QuerySet[Any, Any]:
    columns = (
        "isolation_level",
        "enforces_limits",
        "plain_network",
        "container_network",
        "visible_paths",
    )
    nodes = Node.objects.filter(removed_at=None).order_by()
    return nodes.values_list(*columns).distinct()


def _priority_classes() -> QuerySet[Any, Any]:
    classes = PriorityClass.objects.order_by("-value", "name")
    return classes.values_list("name", "value", "is_default")


def _limits(user_id: int) -> QuerySet[Any, Any]:
    rows = VcLimit.objects.filter(membership__user_id=user_id).order_by()
    return rows.values_list("membership__tenant_id", "virtual_cluster_id")


def _quotas_and_pinned_cells() -> QuerySet[Any, Any]:
    quotas = VcQuota.objects.order_by().values_list("virtual_cluster_id", _NO_NAME)
    pins = PinnedCell.objects.order_by().values_list("virtual_cluster_id", "name")
    return quotas.union(pins)


def _devices_by_node() -> QuerySet[Any, Any]:
    rows: Any = Device.objects.filter(retired_at=None).order_by()
    return rows.values("device_type", "node_id").annotate(on_node=Count("id"))  # type: ignore[no-any-return]


def _first_node_with(devices: int) -> QuerySet[Any, Any]:
    # A plain number would be compared with the range of the column when the query is compiled.
    nodes = _devices_by_node().filter(on_node__gte=Value(devices))
    return nodes.values_list("node_id")[:1]


# Django takes longer to compile these queries than the database to execute them.
_CLUSTERS: Final = CompiledQuery(lambda _: _clusters())
_NODES: Final = CompiledQuery(lambda _: _nodes())
_PRIORITY_CLASSES: Final = CompiledQuery(lambda _: _priority_classes())
_LIMITS: Final = CompiledQuery(_limits)
_QUOTAS_AND_PINNED_CELLS: Final = CompiledQuery(lambda _: _quotas_and_pinned_cells())
_FIRST_NODE_WITH: Final = CompiledQuery(_first_node_with)


def clusters_for(viewer: Viewer) -> dict[str, VirtualCluster]:
    """Return key, name and tenant of the virtual clusters that the viewer may see, by name."""
    tenants = viewer.tenant_ids(Permission.VIEW_JOBS)
    return {
        row[1]: VirtualCluster.from_db(DEFAULT_DB_ALIAS, _CLUSTER_COLUMNS, row)
        for row in _CLUSTERS.rows()
        if tenants is None or row[2] in tenants
    }


class LargestNodes(Mapping[str, int]):
    """Existing device types, with the largest number of their devices on one node.

    The first look-up of a type counts all devices. The first call of ``has`` avoids this: the
    database stops at the first node that is large enough.
    """

    def __init__(self) -> None:
        self._counted: dict[str, int] | None = None
        self._first: tuple[tuple[int, str], bool] | None = None

    def has(self, devices: int, device_type: str = "") -> bool:
        """Return whether a node has this many devices of one type; empty matches any type."""
        asked = devices, device_type
        if self._counted is None and self._first is None:
            self._first = asked, _is_on_a_node(devices, device_type)
        if self._first is not None and self._first[0] == asked:
            return self._first[1]
        return any(
            number >= devices
            for name, number in self._count().items()
            if device_type in ("", name)
        )

    def __getitem__(self, device_type: str) -> int:
        return self._count()[device_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._count())

    def __len__(self) -> int:
        return len(self._count())

    def count_first(self) -> None:
        """Count all devices unless ``has`` was called, because look-ups of types follow."""
        if self._first is None:
            self._count()

    def _count(self) -> dict[str, int]:
        if self._counted is None:
            counts: dict[str, int] = {}
            rows = _devices_by_node().values_list("device_type", "on_node").distinct()
            for device_type, number in rows:
                counts[device_type] = max(number, counts.get(device_type, 0))
            self._counted = counts
        return self._counted


def _is_on_a_node(devices: int, device_type: str) -> bool:
    if not device_type:
        return bool(_FIRST_NODE_WITH.rows(devices))
    nodes = _devices_by_node().filter(on_node__gte=devices, device_type=device_type)
    return bool(nodes.values_list("node_id")[:1])


def kinds_of_nodes() -> tuple[NodeKind, ...]:
    return tuple(NodeKind(*row) for row in _NODES.values())


def priority_values() -> tuple[dict[str, int], str]:
    """Return the value of each priority class by name, and the name of the default or empty."""
    rows = _PRIORITY_CLASSES.values()
    default = next((name for name, _, is_default in rows if is_default), "")
    return {name: value for name, value, _ in rows}, default


def limits_of(user_id: int) -> Mapping[int, frozenset[int]]:
    """Return the virtual clusters to which a user is limited, by tenant ID."""
    limits: dict[int, set[int]] = {}
    for tenant_id, vc_id in _LIMITS.rows(user_id):
        limits.setdefault(tenant_id, set()).add(vc_id)
    return {tenant: frozenset(ids) for tenant, ids in limits.items()}


def promises() -> tuple[frozenset[int], dict[int, tuple[str, ...]]]:
    """Return the virtual clusters with quota, and pinned cells by virtual cluster."""
    rows = _QUOTAS_AND_PINNED_CELLS.rows()
    pinned: dict[int, list[str]] = {}
    for vc_id, name in sorted(row for row in rows if row[1]):
        pinned.setdefault(vc_id, []).append(name)
    guaranteed = frozenset(vc_id for vc_id, name in rows if not name)
    return guaranteed, {vc_id: tuple(names) for vc_id, names in pinned.items()}


def types_by_alias() -> Mapping[str, tuple[str, ...]]:
    """Return the device types of each alias that admins set, in one query."""
    found: dict[str, tuple[str, ...]] = {}
    for alias, kind in DeviceAlias.objects.values_list("alias", "device_type"):
        found[alias] = (*found.get(alias, ()), kind)
    return found


class DeviceAliases:
    """Aliases of device types, read at most once, since most jobs name types or none."""

    @cached_property
    def by_name(self) -> Mapping[str, tuple[str, ...]]:
        """The device types of each alias."""
        return types_by_alias()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitContext:
    """Reference data for validating submitted jobs, read once for any number of jobs.

    Attributes:
        priorities: values of the priority classes by name, the highest first.
        default_class: name of the default priority class, or empty.
        types: existing device types, with the largest number of their devices on one node.
        guaranteed: IDs of virtual clusters with a guarantee besides pinned cells.
        pinned: names of pinned cells by ID of the virtual cluster.
        limited: the only virtual clusters that the viewer may use, by tenant ID.
        host_network: whether instances of a gang may use the network of their nodes.
        nodes: the distinct capabilities of nodes.
        storages: the rules of all storages.
        aliases: the aliases of device types that admins set.
    """

    clusters: Mapping[str, VirtualCluster]
    priorities: Mapping[str, int]
    default_class: str
    types: LargestNodes
    guaranteed: frozenset[int]
    pinned: Mapping[int, tuple[str, ...]]
    limited: Mapping[int, frozenset[int]]
    images_ignored: bool
    host_network: bool = True
    nodes: tuple[NodeKind, ...] = ()
    storages: tuple[StorageRule, ...] = ()
    aliases: DeviceAliases = field(default_factory=DeviceAliases)

    @property
    def default_priority(self) -> int:
        """The priority of jobs that request none."""
        return self.priorities.get(self.default_class, DEFAULT_PRIORITY)

    def types_named(self, name: str) -> tuple[str, ...]:
        """Return the device types that a name in a document means; empty for an unknown name."""
        aliases = {} if name in self.types else self.aliases.by_name
        return types_named(name, self.types, aliases)

    def may_use(self, virtual_cluster: VirtualCluster) -> bool:
        """Return whether the viewer's membership allows the use of a virtual cluster."""
        allowed = self.limited.get(virtual_cluster.tenant_id)
        return allowed is None or virtual_cluster.pk in allowed

    def pinned_in(self, virtual_cluster: object) -> tuple[str, ...]:
        """Return the names of the pinned cells of a virtual cluster; empty for an unknown one."""
        found = self.clusters.get(virtual_cluster) if isinstance(virtual_cluster, str) else None
        return self.pinned.get(found.pk, ()) if found is not None else ()


def read_submit_context(
    *, viewer: Viewer, images_ignored: bool, host_network: bool = True
) -> SubmitContext:
    """Read the reference data for jobs of this viewer, in a fixed number of queries."""
    priorities, default_class = priority_values()
    guaranteed, pinned = promises()
    return SubmitContext(
        clusters=clusters_for(viewer),
        priorities=priorities,
        default_class=default_class,
        types=LargestNodes(),
        guaranteed=guaranteed,
        pinned=pinned,
        limited=limits_of(viewer.user_id or 0),
        images_ignored=images_ignored,
        host_network=host_network,
        nodes=kinds_of_nodes(),
        storages=storage_rules(),
    )
